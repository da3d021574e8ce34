/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec/gate.c: the gate's rules.
 *
 * Owns: nothing. Never does: time, allocate, run. Called from: the running thread.
 *
 *   lost
 *       What calls of other arms took beyond the active arm's median, and what the first call after
 *       such a probe took beyond it. Each probe is charged with what it is expected to lose before
 *       it runs; the charge is replaced by what it did lose.
 *   budget
 *       A probe may begin when the loss so far and the expected loss of all calls of its block stay
 *       within `budget` of the time spent, or of the first FM__GATE_LENT_... calls'. Cheap probes
 *       so come early, dear ones late, and none never.
 *   probation
 *       Calls of one arm follow each other, the first is left out. An arm whose every call is
 *       beyond `hopeless` ends its probation with the second; one as fast as the active arm within
 *       `hysteresis` gets a full window, which costs little for the same reason. An arm that beats
 *       the active one by `hysteresis` becomes active at once; when all are known, the one with the
 *       lowest median is locked.
 *   drift
 *       The active arm's median is off its reference by `drift`. Slower: every arm that would be as
 *       fast, had it kept its time, is compared. Faster: the best other arm is, since whatever
 *       ended may have slowed it more.
 *   compare
 *       A B B A, and when B does not come out slower, A B B A again: medians of four decide. B is
 *       expected to lose as if it had changed alike, where that is more.
 *   expiry
 *       The active arm takes more or less than predicted, by `expire`, in most of its calls of two
 *       windows: what the predictions say of the others does not hold either. None is hopeless any
 *       more and each gets a probation, the likeliest first. How much slower an arm was predicted
 *       to be only delays its probe, until the budget allows for that.
 *   back-off
 *       After a comparison without a switch the next waits, twice as long each time. An arm that
 *       was left is compared again in the same way: what slowed it, a drift or the first calls of a
 *       program, may have ended.
 */
#include "exec/gate.h"

#include <stdarg.h>
#include <string.h>

#include "exec/median.h"

#define NO_ARM UINT32_MAX

enum {
    DRIFT_SAMPLES = 5, /* more than half of a window */
    BACKOFF_LAST = 1 << 16,
    STEPS_B = 0x66, /* which steps of A B B A A B B A are B's */
};

/* Of an arm of which nothing is known: between as fast and hopeless. */
static const double UNKNOWN_RATIO = 1.15;

static const char *const EVENT_NAMES[] = {"kept",   "lock",      "drift",     "all-drift",
                                          "switch", "no-switch", "forbidden", "expired"};

const char *fm__gate_event_name(fm__gate_event event) {
    return (size_t)event < sizeof EVENT_NAMES / sizeof *EVENT_NAMES ? EVENT_NAMES[event]
                                                                    : "unknown";
}

static FM__PRINTF(3, 4) void say(fm__gate *gate, fm__gate_event event, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(gate->reason, sizeof gate->reason, format, arguments);
    va_end(arguments);
    gate->event = event;
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

static double percent(double ratio) {
    return (ratio - 1) * 100;
}

static bool usable(const fm__gate *gate, uint32_t i) {
    return !gate->arms[i].hopeless && !gate->arms[i].removed;
}

/* ---- beginning ---- */

static void mark_hopeless(fm__gate *gate) {
    double best = 0;
    for (uint32_t i = 0; i < gate->n_arm; i++) {
        const fm__gate_arm *arm = &gate->arms[i];
        if (!arm->removed && arm->predicted > 0 && (best == 0 || arm->predicted < best))
            best = arm->predicted;
    }
    for (uint32_t i = 0; i < gate->n_arm; i++)
        gate->arms[i].hopeless =
            !gate->expired && gate->arms[i].predicted > best * gate->options.hopeless;
}

/* The usable arm with the lowest median; of those without one, the lowest prediction, then the
   first. NO_ARM: there is none. */
static uint32_t most_promising(const fm__gate *gate) {
    uint32_t best = NO_ARM;
    for (uint32_t i = 0; i < gate->n_arm; i++) {
        if (!usable(gate, i))
            continue;
        if (best == NO_ARM) {
            best = i;
            continue;
        }
        const fm__gate_arm *a = &gate->arms[i], *b = &gate->arms[best];
        bool measured = a->median > 0 || b->median > 0;
        double mine = measured ? a->median : a->predicted,
               other = measured ? b->median : b->predicted;
        if (mine > 0 && (other <= 0 || mine < other))
            best = i;
    }
    return best;
}

void fm__gate_init(fm__gate *gate, const fm__gate_options *options, const char *const *names,
                   const double *predicted, const bool *enlarges, uint32_t n_arm) {
    assert(n_arm > 0 && n_arm <= FM__GATE_ARMS);
    memset(gate, 0, sizeof *gate);
    if (options != NULL)
        gate->options = *options;
    fm__gate_options *o = &gate->options;
    if (o->probation == 0)
        o->probation = 3;
    if (o->probation > FM__GATE_WINDOW)
        o->probation = FM__GATE_WINDOW;
    o->budget = o->budget > 0 ? o->budget : 0.01;
    o->hysteresis = o->hysteresis > 0 ? o->hysteresis : 0.03;
    o->drift = o->drift > 0 ? o->drift : 0.10;
    o->hopeless = o->hopeless > 1 ? o->hopeless : 1.3;
    o->expire = o->expire > 1 ? o->expire : o->hopeless;
    gate->n_arm = n_arm;
    for (uint32_t i = 0; i < n_arm; i++) {
        gate->arms[i].name = names[i];
        gate->arms[i].predicted = predicted != NULL && predicted[i] > 0 ? predicted[i] : 0;
        gate->arms[i].enlarges = enlarges != NULL && enlarges[i];
    }
    mark_hopeless(gate);
    gate->active = most_promising(gate);
    gate->probing = gate->challenger = gate->left = NO_ARM;
    gate->backoff = FM__GATE_BACKOFF;
    say(gate, FM__GATE_KEPT, "%.24s begins", gate->arms[gate->active].name);
}

/* ---- what a probe may cost ---- */

static double predicted_ratio(const fm__gate *gate, const fm__gate_arm *arm) {
    const fm__gate_arm *active = &gate->arms[gate->active];
    if (arm->predicted > 0 && active->predicted > 0)
        return larger(arm->predicted / active->predicted, 1 + gate->options.hysteresis);
    return UNKNOWN_RATIO;
}

/* What is thought of arm i before its block has a sample. */
static double prior_ratio(const fm__gate *gate, uint32_t i) {
    if (gate->phase != FM__GATE_PAIRED)
        return predicted_ratio(gate, &gate->arms[i]);
    double kept = gate->before / gate->arms[gate->active].median;
    return gate->reference > 0 ? larger(kept, gate->before / gate->reference) : kept;
}

/* Time of a call of arm i, which is not active, over the active arm's. A first call may take longer
   than those after it, the very first one by any amount: only a second says something. */
static double expected_ratio(const fm__gate *gate, uint32_t i) {
    const fm__gate_arm *arm = &gate->arms[i];
    double seen = arm->lowest / gate->arms[gate->active].median;
    bool sampled = arm->n_sample > 0 && arm->lowest > 0;
    bool cliff = seen > 2 * gate->options.hopeless && arm->calls > 1;
    return sampled || cliff ? seen : prior_ratio(gate, i);
}

/* Calls of arm i that its block still needs, its first one included. */
static uint32_t calls_left(const fm__gate *gate, uint32_t i) {
    bool first = !gate->settled || gate->last != i;
    if (gate->phase == FM__GATE_PAIRED)
        return (gate->step % 4 < 2 ? 2u : 1u) + first;
    uint32_t need = gate->arms[i].n_sample < gate->options.probation ? gate->options.probation
                                                                     : FM__GATE_WINDOW;
    return need - gate->arms[i].n_sample + first;
}

/* Of `calls` calls of arm i, the first one maybe still to come, and of the return. */
static double probe_cost(const fm__gate *gate, uint32_t i, uint32_t calls) {
    double shares = larger(expected_ratio(gate, i) - 1, 0) * calls + gate->aftermath;
    if (!gate->settled || gate->last != i)
        shares += gate->warm_up;
    return shares * gate->arms[gate->active].median * gate->work_high;
}

static bool affordable(const fm__gate *gate, uint32_t i) {
    const fm__gate_arm *active = &gate->arms[gate->active];
    double lent = gate->arms[i].predicted > 0 ? FM__GATE_LENT_KNOWN : FM__GATE_LENT_UNKNOWN;
    double call = active->median * (gate->work_sum / (double)gate->calls);
    double earned = gate->options.budget * larger(gate->spent_ns, lent * call);
    return gate->lost_ns + probe_cost(gate, i, calls_left(gate, i)) <= earned;
}

/* Says once that a probe which is due is not allowed. */
static void refuse(fm__gate *gate, uint32_t i, bool memory) {
    if (gate->refused)
        return;
    gate->refused = true;
    gate->forbidden++;
    if (memory)
        say(gate, FM__GATE_FORBIDDEN, "%.24s would enlarge the working set, and memory is tight",
            gate->arms[i].name);
    else
        say(gate, FM__GATE_FORBIDDEN,
            "%.24s would lose %.2f ms; %.2f ms are lost already, of %.0f ms in all",
            gate->arms[i].name, probe_cost(gate, i, calls_left(gate, i)) / 1e6, gate->lost_ns / 1e6,
            gate->spent_ns / 1e6);
}

static bool allowed(fm__gate *gate, uint32_t i, bool memory_tight) {
    bool memory = memory_tight && gate->arms[i].enlarges;
    if (memory || !affordable(gate, i)) {
        refuse(gate, i, memory);
        return false;
    }
    gate->refused = false;
    return true;
}

/* ---- the active arm ---- */

static bool all_proved(const fm__gate *gate) {
    for (uint32_t i = 0; i < gate->n_arm; i++)
        if (usable(gate, i) && !gate->arms[i].proved)
            return false;
    return true;
}

static void settle(fm__gate *gate) {
    gate->reference = gate->arms[gate->active].median;
    gate->reference_full = gate->arms[gate->active].n_sample == FM__GATE_WINDOW;
    gate->drifted = false;
    gate->compared = 0;
}

/* `left`: an arm to compare with again later, or NO_ARM. */
static void activate(fm__gate *gate, uint32_t i, uint32_t left) {
    gate->switches += gate->active != i;
    gate->active = i;
    gate->left = left;
    gate->off = 0;
    gate->backoff = gate->wait_calls = FM__GATE_BACKOFF;
    settle(gate);
}

static void back_to_watching(fm__gate *gate) {
    gate->phase = all_proved(gate) ? FM__GATE_LOCKED : FM__GATE_PROBATION;
    gate->challenger = NO_ARM;
    gate->step = 0;
}

/* ---- probation ---- */

static bool as_fast(const fm__gate *gate, const fm__gate_arm *arm) {
    double ratio = arm->median / gate->arms[gate->active].median, h = gate->options.hysteresis;
    return ratio > 1 - h && ratio < 1 + h;
}

/* The arm whose probation is cheapest, among those that memory allows. *blocked: one that it does
   not, or NO_ARM. */
static uint32_t cheapest_unproved(const fm__gate *gate, bool memory_tight, uint32_t *blocked) {
    uint32_t best = NO_ARM;
    *blocked = NO_ARM;
    for (uint32_t i = 0; i < gate->n_arm; i++) {
        if (i == gate->active || !usable(gate, i) || gate->arms[i].proved)
            continue;
        if (memory_tight && gate->arms[i].enlarges)
            *blocked = i;
        else if (best == NO_ARM || expected_ratio(gate, i) < expected_ratio(gate, best))
            best = i;
    }
    return best;
}

/* The arm to probe next, or NO_ARM. */
static uint32_t probation_arm(fm__gate *gate, bool memory_tight) {
    for (;;) {
        uint32_t i = gate->probing, blocked = NO_ARM;
        bool begun = i != NO_ARM;
        if (!begun)
            i = cheapest_unproved(gate, memory_tight, &blocked);
        if (i == NO_ARM && blocked != NO_ARM)
            refuse(gate, blocked, true);
        if (i == NO_ARM)
            return NO_ARM;
        gate->probing = NO_ARM;
        bool enough = gate->arms[i].n_sample >= gate->options.probation;
        if (enough && !affordable(gate, i)) {
            gate->arms[i].proved = true; /* a full window would be better, but this will do */
            continue;
        }
        if (allowed(gate, i, memory_tight))
            gate->probing = i;
        if (gate->probing != NO_ARM || !begun)
            return gate->probing;
    }
}

static void feed_probation(fm__gate *gate, uint32_t i) {
    fm__gate_arm *arm = &gate->arms[i];
    const fm__gate_arm *active = &gate->arms[gate->active];
    bool enough = arm->n_sample >= FM__GATE_WINDOW ||
                  (arm->n_sample >= gate->options.probation && !as_fast(gate, arm));
    bool slow = arm->n_sample > 0 && arm->lowest > gate->options.hopeless * active->median;
    if (!enough && !slow)
        return;
    arm->proved = true;
    gate->probing = NO_ARM;
    double ratio = arm->median / active->median;
    if (enough && ratio < 1 - gate->options.hysteresis) {
        say(gate, FM__GATE_SWITCH, "%.24s takes %.1f %% less than %.24s, by medians of %u",
            arm->name, -percent(ratio), active->name, arm->n_sample);
        activate(gate, i, gate->active);
    } else
        say(gate, FM__GATE_KEPT, "probation of %.24s is over: %.2f times %.24s", arm->name, ratio,
            active->name);
}

static void lock_if_proved(fm__gate *gate) {
    const fm__gate_arm *active = &gate->arms[gate->active];
    if (gate->phase != FM__GATE_PROBATION || !all_proved(gate))
        return;
    uint32_t best = gate->active;
    for (uint32_t i = 0; i < gate->n_arm; i++) {
        const fm__gate_arm *arm = &gate->arms[i];
        if (i == gate->active || !usable(gate, i))
            continue;
        if (active->n_sample < FM__GATE_WINDOW && as_fast(gate, arm))
            return; /* too near to be told apart by less */
        if (arm->median < gate->arms[best].median)
            best = i;
    }
    if (best != gate->active)
        activate(gate, best, gate->active);
    settle(gate);
    gate->phase = FM__GATE_LOCKED;
    say(gate, FM__GATE_LOCK, "%.24s has the lowest median of %u", gate->arms[best].name,
        gate->n_arm);
}

/* ---- drift ---- */

static void watch(fm__gate *gate) {
    const fm__gate_arm *active = &gate->arms[gate->active];
    if (active->n_sample < DRIFT_SAMPLES || gate->reference <= 0)
        return;
    double ratio = active->median / gate->reference, limit = 1 + gate->options.drift;
    bool off = ratio >= limit || ratio * limit <= 1;
    if (!off && !gate->reference_full && active->n_sample == FM__GATE_WINDOW)
        settle(gate); /* the first full window knows better than the few samples before */
    if (off && !gate->drifted) {
        gate->compared = 0;
        gate->all_alike = true;
        say(gate, FM__GATE_DRIFT, "%.24s takes %+.1f %% of what it took", active->name,
            percent(ratio));
    }
    gate->drifted = off;
}

/* The next arm to compare the active one with after its drift, or NO_ARM. */
static uint32_t candidate(const fm__gate *gate) {
    const fm__gate_arm *active = &gate->arms[gate->active];
    bool faster = active->median < gate->reference;
    double limit = (1 + gate->options.hysteresis) * active->median;
    uint32_t best = NO_ARM;
    if (!gate->drifted || (faster && gate->compared != 0))
        return NO_ARM;
    for (uint32_t i = 0; i < gate->n_arm; i++) {
        const fm__gate_arm *arm = &gate->arms[i];
        if (i == gate->active || !usable(gate, i) || !arm->proved || (gate->compared >> i & 1))
            continue;
        if ((faster || arm->best < limit) &&
            (best == NO_ARM || arm->median < gate->arms[best].median))
            best = i;
    }
    return best;
}

static void begin_comparison(fm__gate *gate, uint32_t i) {
    fm__gate_arm *arm = &gate->arms[i];
    gate->before = arm->median;
    arm->lowest = 0;
    gate->phase = FM__GATE_PAIRED;
    gate->challenger = i;
    gate->step = 0;
}

/* Begins a comparison if one is due and allowed. */
static void look_around(fm__gate *gate, bool memory_tight) {
    if (gate->wait_calls > 0)
        return;
    uint32_t i = candidate(gate);
    if (i == NO_ARM && gate->drifted && gate->arms[gate->active].median < gate->reference)
        settle(gate); /* faster, and nobody to compare with */
    if (i == NO_ARM && !gate->drifted && gate->left != NO_ARM && usable(gate, gate->left))
        i = gate->left;
    if (i == NO_ARM)
        return;
    begin_comparison(gate, i);
    if (!allowed(gate, i, memory_tight)) {
        back_to_watching(gate);
        return;
    }
    gate->arms[i].n_sample = gate->arms[i].next = 0; /* what it took before is past */
}

/* ---- comparisons ---- */

/* Those that were not looked at are thought to have changed like the active one. */
static void change_alike(fm__gate *gate, uint32_t i, double change) {
    fm__gate_arm *arm = &gate->arms[i];
    arm->best *= change;
    if (i == gate->active || (gate->compared >> i & 1))
        return;
    arm->median *= change;
    arm->lowest *= change;
    for (uint32_t s = 0; s < arm->n_sample; s++)
        arm->samples[s] *= change;
}

/* No challenger is left: what all comparisons since the drift say together. */
static void end_campaign(fm__gate *gate) {
    double change = gate->arms[gate->active].median / gate->reference;
    gate->wait_calls = gate->backoff;
    gate->backoff = gate->backoff < BACKOFF_LAST ? gate->backoff * 2 : BACKOFF_LAST;
    if (gate->drifted && gate->all_alike) {
        for (uint32_t i = 0; i < gate->n_arm; i++)
            change_alike(gate, i, change);
        say(gate, FM__GATE_ALL_DRIFT, "all arms changed by about %+.0f %%: %.24s stays",
            percent(change), gate->arms[gate->active].name);
    }
    if (gate->drifted && (gate->all_alike || change < 1))
        settle(gate);
    gate->compared = 0; /* a slower arm that stays is compared again, each time later */
    gate->all_alike = true;
}

static void keep(fm__gate *gate, double ratio, bool alike) {
    uint32_t i = gate->challenger;
    gate->compared |= 1u << i;
    gate->all_alike = gate->all_alike && alike;
    say(gate, FM__GATE_NO_SWITCH, "%.24s takes %.2f times what %.24s takes", gate->arms[i].name,
        ratio, gate->arms[gate->active].name);
    back_to_watching(gate);
    if (candidate(gate) == NO_ARM)
        end_campaign(gate);
}

/* Four steps, or eight, are known. */
static void judge(fm__gate *gate) {
    double a[FM__GATE_PAIRS] = {0}, b[FM__GATE_PAIRS] = {0}, worth = 1 - gate->options.hysteresis;
    uint32_t n_a = 0, n_b = 0, i = gate->challenger;
    for (uint32_t s = 0; s < gate->step; s++)
        if (STEPS_B >> s & 1)
            b[n_b++] = gate->pair[s];
        else
            a[n_a++] = gate->pair[s];
    double active = fm__median(a, n_a), other = fm__median(b, n_b);
    double least = b[0] < b[1] ? b[0] : b[1];
    if (gate->step < FM__GATE_PAIRS && least < worth * active)
        return; /* not clearly slower: again */
    if (gate->step == FM__GATE_PAIRS && other < worth * active) {
        say(gate, FM__GATE_SWITCH, "%.24s takes %.1f %% less than %.24s, by A B B A twice",
            gate->arms[i].name, -percent(other / active), gate->arms[gate->active].name);
        activate(gate, i, gate->drifted ? gate->active : NO_ARM);
        back_to_watching(gate);
        return;
    }
    double mine = active / gate->reference - 1, its = other / gate->before - 1;
    bool alike = mine * its > 0 && its / mine >= 0.5;
    keep(gate, other / active, alike);
}

static void feed_comparison(fm__gate *gate, uint32_t i, bool settled, double sample) {
    uint32_t expected = STEPS_B >> gate->step & 1 ? gate->challenger : gate->active;
    if (i != expected || !settled)
        return;
    gate->pair[gate->step++] = sample;
    if (gate->step % 4 == 0)
        judge(gate);
}

/* The comparison's next arm; the active one where the probe is not allowed any more. */
static uint32_t comparison_arm(fm__gate *gate, bool memory_tight) {
    if (!(STEPS_B >> gate->step & 1) || allowed(gate, gate->challenger, memory_tight))
        return STEPS_B >> gate->step & 1 ? gate->challenger : gate->active;
    gate->compared |= 1u << gate->challenger;
    gate->all_alike = false;
    gate->wait_calls = gate->backoff;
    gate->backoff = gate->backoff < BACKOFF_LAST ? gate->backoff * 2 : BACKOFF_LAST;
    gate->compared = 0;
    back_to_watching(gate);
    return gate->active;
}

/* ---- expiry ---- */

static void expire(fm__gate *gate, double ratio) {
    fm__gate_arm *active = &gate->arms[gate->active];
    gate->expired = true;
    mark_hopeless(gate);
    for (uint32_t i = 0; i < gate->n_arm; i++) {
        fm__gate_arm *arm = &gate->arms[i];
        if (i == gate->active)
            continue;
        arm->proved = false;
        arm->n_sample = arm->next = 0;
        arm->median = arm->best = arm->lowest = 0;
    }
    gate->probing = gate->left = NO_ARM;
    settle(gate);
    back_to_watching(gate);
    say(gate, FM__GATE_EXPIRED, "%.24s takes %.2f times what was predicted: predictions expire",
        active->name, ratio);
}

/* Counts calls of the active arm that are off its prediction. */
static void check_prediction(fm__gate *gate, double sample, double work) {
    const fm__gate_arm *active = &gate->arms[gate->active];
    double known = gate->options.work, limit = gate->options.expire;
    if (gate->expired || known <= 0 || active->predicted <= 0 || work < 0.75 * known ||
        work > 1.25 * known)
        return;
    double ratio = sample / active->predicted;
    bool off = ratio > limit || ratio * limit < 1;
    if (off)
        gate->off++;
    else if (gate->off > 0)
        gate->off--;
    if (gate->off >= FM__GATE_EXPIRE_CALLS)
        expire(gate, active->median / active->predicted);
}

/* ---- choose, feed, remove ---- */

static uint32_t wanted(fm__gate *gate, bool memory_tight) {
    if (gate->phase == FM__GATE_PAIRED)
        return comparison_arm(gate, memory_tight);
    if (gate->arms[gate->active].n_sample < gate->options.probation)
        return gate->active; /* what others are compared with comes first */
    uint32_t i = gate->phase == FM__GATE_PROBATION ? probation_arm(gate, memory_tight) : NO_ARM;
    if (i != NO_ARM)
        return i;
    look_around(gate, memory_tight);
    return gate->active; /* also a comparison's first step */
}

static void take_charge_back(fm__gate *gate) {
    if (gate->charged)
        gate->lost_ns = gate->lost_before;
    gate->charged = false;
}

uint32_t fm__gate_choose(fm__gate *gate, bool memory_tight) {
    take_charge_back(gate);
    if (!gate->chosen)
        gate->event = FM__GATE_KEPT;
    gate->chosen = true;
    uint32_t i = wanted(gate, memory_tight);
    if (gate->event == FM__GATE_KEPT)
        say(gate, FM__GATE_KEPT, "%.24s %s", gate->arms[i].name,
            gate->phase == FM__GATE_PAIRED ? "is compared"
            : i == gate->active            ? "is active"
                                           : "is on probation");
    if (i != gate->active) {
        gate->charged = true;
        gate->lost_before = gate->lost_ns;
        gate->lost_ns += probe_cost(gate, i, 1);
    }
    return i;
}

/* Follows what first calls lose: at once upwards, slowly down. */
static void learn(double *share, double seen) {
    seen = seen < 1 ? larger(seen, 0) : 1;
    *share = larger(seen, 0.9 * *share);
}

/* What a call took, and lost. */
static void book(fm__gate *gate, uint32_t i, double ns, double work) {
    fm__gate_arm *arm = &gate->arms[i];
    double usual = gate->arms[gate->active].median * work;
    bool change = gate->settled && gate->last != i;
    gate->calls++;
    arm->calls++;
    gate->spent_ns += ns;
    gate->work_sum += work;
    gate->work_high = larger(work, gate->work_high + 0.01 * (work - gate->work_high));
    if (i != gate->active) {
        gate->probes++;
        arm->probes++;
    }
    if (usual <= 0 || (i == gate->active && !change))
        return;
    gate->lost_ns += larger(ns - usual, 0);
    if (i == gate->active)
        learn(&gate->aftermath, ns / usual - 1);
    else if (change)
        learn(&gate->warm_up, ns / usual - larger(expected_ratio(gate, i), 1));
}

static void push(fm__gate_arm *arm, double sample) {
    arm->samples[arm->next] = sample;
    arm->next = (arm->next + 1) % FM__GATE_WINDOW;
    if (arm->n_sample < FM__GATE_WINDOW)
        arm->n_sample++;
    arm->median = fm__median(arm->samples, arm->n_sample);
    if (arm->best == 0 || (arm->n_sample > 1 && arm->median < arm->best))
        arm->best = arm->median;
}

void fm__gate_feed(fm__gate *gate, uint32_t i, double ns, double work) {
    assert(i < gate->n_arm && ns >= 0 && work > 0);
    fm__gate_arm *arm = &gate->arms[i];
    bool settled = gate->settled && gate->last == i;
    double sample = larger(ns, 1) / work; /* a clock that stands still is not infinite speed */
    if (!gate->chosen)
        say(gate, FM__GATE_KEPT, "%.24s ran unasked", arm->name);
    gate->chosen = false;
    take_charge_back(gate);
    book(gate, i, larger(ns, 1), work);
    gate->last = i;
    gate->settled = true;
    if (gate->wait_calls > 0)
        gate->wait_calls--;
    if (i != gate->active && (arm->lowest == 0 || sample < arm->lowest))
        arm->lowest = sample;
    if (settled)
        push(arm, sample);
    if (gate->phase == FM__GATE_PAIRED)
        feed_comparison(gate, i, settled, sample);
    else if (i == gate->probing)
        feed_probation(gate, i);
    else if (i == gate->active) {
        arm->proved = arm->proved || arm->n_sample >= gate->options.probation;
        if (settled)
            watch(gate);
    }
    lock_if_proved(gate);
    if (settled && i == gate->active)
        check_prediction(gate, sample, work);
}

bool fm__gate_remove(fm__gate *gate, uint32_t i) {
    assert(i < gate->n_arm);
    gate->arms[i].removed = true;
    take_charge_back(gate);
    if (gate->last == i)
        gate->settled = false;
    if (gate->probing == i)
        gate->probing = NO_ARM;
    mark_hopeless(gate);
    uint32_t best = most_promising(gate);
    if (best == NO_ARM)
        return false;
    bool was_active = gate->active == i;
    if (was_active) {
        gate->probing = NO_ARM;
        activate(gate, best, NO_ARM);
        say(gate, FM__GATE_SWITCH, "%.24s failed: %.24s takes over", gate->arms[i].name,
            gate->arms[best].name);
    } else
        say(gate, FM__GATE_KEPT, "%.24s failed and is out", gate->arms[i].name);
    if (was_active || gate->challenger == i || gate->phase != FM__GATE_PAIRED)
        back_to_watching(gate);
    return true;
}
