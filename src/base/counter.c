/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/counter.c: a number that only grows and that threads can wait on.
 *
 * Owns: nothing (on systems without futexes, one lock for all sleepers). Never does: fairness, or
 * time-outs. Called from: every thread. The counter must outlive the call that raises it: a waiter
 * may return before the raising call does.
 *
 * No wake-up is lost: a waiter announces itself in `sleepers` before it reads `value` for the last
 * time, and a raiser writes `value` before it reads `sleepers`, all sequentially consistent, so at
 * least one sees the other. A raiser that sees a sleeper changes `wake`, and the kernel puts a
 * waiter to sleep only while `wake` is what it was before that last reading.
 */
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#include <limits.h>
#include <pthread.h>
#include <sched.h>

#include "base/base.h"

/* A hand-over costs some 2 us by spinning and some 30 us through the kernel; longer waits than this
   are worth the sleep. */
#define SPIN_NS 30000
/* ... unless work is known to be under way that ends it: then the processor is offered to others
   between looks, and the sleep comes later. */
#define SOON_NS 500000

#if defined(__linux__) && !defined(FM__COUNTER_BY_CONDITION)

static void park(fm__counter *counter, uint32_t seen) {
    syscall(SYS_futex, &counter->wake, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void unpark_all(fm__counter *counter) {
    atomic_fetch_add(&counter->wake, 1);
    syscall(SYS_futex, &counter->wake, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

#else

static pthread_mutex_t park_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t park_changed = PTHREAD_COND_INITIALIZER;

static void park(fm__counter *counter, uint32_t seen) {
    pthread_mutex_lock(&park_lock);
    if (atomic_load(&counter->wake) == seen)
        pthread_cond_wait(&park_changed, &park_lock);
    pthread_mutex_unlock(&park_lock);
}

static void unpark_all(fm__counter *counter) {
    pthread_mutex_lock(&park_lock);
    atomic_fetch_add(&counter->wake, 1);
    pthread_cond_broadcast(&park_changed);
    pthread_mutex_unlock(&park_lock);
}

#endif

void fm__cpu_pause(void) {
#if defined(FM__ARCH_X86_64)
    __builtin_ia32_pause();
#elif defined(FM__ARCH_AARCH64)
    __asm__ volatile("yield");
#endif
}

void fm__counter_init(fm__counter *counter, uint64_t value) {
    atomic_init(&counter->value, value);
    atomic_init(&counter->wake, 0);
    atomic_init(&counter->sleepers, 0);
}

uint64_t fm__counter_read(fm__counter *counter) {
    return atomic_load_explicit(&counter->value, memory_order_acquire);
}

void fm__counter_set(fm__counter *counter, uint64_t value) {
    /* An exchange, where the language would let a store do: qemu's aarch64 lets a release store
       pass a later acquire load, and then a waiter sleeps for ever (seen, once in ten runs of the
       test). */
    atomic_exchange(&counter->value, value);
    if (atomic_load(&counter->sleepers) != 0)
        unpark_all(counter);
}

void fm__counter_add(fm__counter *counter, uint64_t n) {
    atomic_fetch_add(&counter->value, n);
    if (atomic_load(&counter->sleepers) != 0)
        unpark_all(counter);
}

static bool spin(fm__counter *counter, uint64_t at_least, uint64_t limit_ns) {
    uint64_t began = 0;
    for (uint32_t i = 0;; i++) {
        if (fm__counter_read(counter) >= at_least)
            return true;
        fm__cpu_pause();
        if (i % 32 == 31) {
            uint64_t now = fm__now_ns();
            if (began == 0)
                began = now;
            else if (now - began > limit_ns)
                return false;
            else if (now - began > SPIN_NS)
                sched_yield();
        }
    }
}

static void wait_spinning(fm__counter *counter, uint64_t at_least, uint64_t spin_ns) {
    if (spin(counter, at_least, spin_ns))
        return;
    atomic_fetch_add(&counter->sleepers, 1);
    for (;;) {
        uint32_t seen = atomic_load(&counter->wake);
        if (atomic_load(&counter->value) >= at_least)
            break;
        park(counter, seen);
    }
    atomic_fetch_sub(&counter->sleepers, 1);
}

void fm__counter_wait(fm__counter *counter, uint64_t at_least) {
    wait_spinning(counter, at_least, SPIN_NS);
}

void fm__counter_wait_soon(fm__counter *counter, uint64_t at_least) {
    wait_spinning(counter, at_least, SOON_NS);
}
