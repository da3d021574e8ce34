/* SPDX-License-Identifier: Apache-2.0 */
/* calibrate.c: `fusionml calibrate`: measures how to divide the products of whole tapes, and shows
 * the curves. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "fusionml/lab.h"

enum { PLOT_ROWS = 8, PLOT_COLUMNS = 51 }; /* a column is a share of 0.02 */

typedef struct fm_lab_curve curve;

static int show(void *user, const fm_lab_point *point) {
    char phase[96];
    (void)user;
    snprintf(phase, sizeof phase, "%.40s, %u row%s, share %.3f: %.2f ms", point->shape, point->rows,
             cli_plural(point->rows), point->share, point->ms);
    return cli_progress(NULL, phase, point->done, point->total);
}

static void bounds(const curve *c, double *least, double *most) {
    *least = *most = c->n_point > 0 ? c->ms[0] : 0;
    for (uint32_t i = 1; i < c->n_point; i++) {
        *least = c->ms[i] < *least ? c->ms[i] : *least;
        *most = c->ms[i] > *most ? c->ms[i] : *most;
    }
}

/* ---- as text ---- */

/* Time upwards over share; 'o' marks the best. */
static void plot(const curve *c) {
    char grid[PLOT_ROWS][PLOT_COLUMNS + 1];
    double least, most;
    bounds(c, &least, &most);
    for (int r = 0; r < PLOT_ROWS; r++) {
        memset(grid[r], ' ', PLOT_COLUMNS);
        grid[r][PLOT_COLUMNS] = '\0';
    }
    for (uint32_t i = 0; i < c->n_point; i++) {
        double height = most > least ? (c->ms[i] - least) / (most - least) : 0;
        int row = PLOT_ROWS - 1 - (int)(height * (PLOT_ROWS - 1) + 0.5);
        int column = (int)(c->share[i] * (PLOT_COLUMNS - 1) + 0.5);
        if (column >= 0 && column < PLOT_COLUMNS)
            grid[row][column] = c->share[i] == c->best ? 'o' : '*';
    }
    for (int r = 0; r < PLOT_ROWS; r++) {
        if (r == 0 || r == PLOT_ROWS - 1)
            printf("  %10.3f ms |%s\n", r == 0 ? most : least, grid[r]);
        else
            printf("  %13s |%s\n", "", grid[r]);
    }
    printf("  %13s +---------+---------+---------+---------+---------+\n", "");
    printf("  %13s 0        .2        .4        .6        .8         1  share of the last unit\n",
           "");
}

static void print_text(const fm_lab_calibration *found) {
    double spent = 0;
    for (uint32_t i = 0; i < found->n_curve; i++) {
        const curve *c = &found->curves[i];
        printf("%s, %u row%s: one share for all products, best %.3f\n", c->shape, c->rows,
               cli_plural(c->rows), c->best);
        plot(c);
        putchar('\n');
        spent += c->spent_ms;
    }
    printf("ms for a tape full of rows\n%6s", "rows");
    for (int arm = FM_ARM_CPU; arm <= FM_ARM_SPLIT; arm++)
        printf(" %10s", fm_arm_name((fm_arm)arm));
    printf(" %10s %6s\n", "best split", "gain");
    for (uint32_t i = 0; i < found->n_curve; i++) {
        const curve *c = &found->curves[i];
        printf("%6u", c->rows);
        for (int arm = FM_ARM_CPU; arm <= FM_ARM_SPLIT; arm++) {
            if (c->arm_ms[arm] > 0)
                printf(" %10.3f", c->arm_ms[arm]);
            else
                printf(" %10s", "-");
        }
        printf(" %10.3f %6.3f\n", c->best_ms, c->gain);
    }
    int width = 44;
    for (uint32_t p = 0; found->n_curve > 0 && p < found->curves[0].n_product; p++) {
        int bytes = (int)strlen(found->curves[0].products[p].shape);
        width = bytes > width ? bytes : width;
    }
    printf("\nshare of the last unit, at rows\n%-*s", width, "product");
    for (uint32_t i = 0; i < found->n_curve; i++)
        printf(" %6u", found->curves[i].rows);
    putchar('\n');
    for (uint32_t p = 0; found->n_curve > 0 && p < found->curves[0].n_product; p++) {
        printf("%-*s", width, found->curves[0].products[p].shape);
        for (uint32_t i = 0; i < found->n_curve; i++)
            printf(" %6.3f", found->curves[i].products[p].share);
        putchar('\n');
    }
    printf("\n%.1f s of runs; saved in %s\n", spent / 1e3, found->path);
    if (found->key[0] != '\0')
        printf("valid for %s\n", found->key);
}

static json_t *json_curve(const curve *c) {
    json_t *points = json_array(), *products = json_array(), *arms = json_object();
    for (uint32_t p = 0; p < c->n_point; p++)
        json_array_append_new(points,
                              json_pack("{s:f, s:f}", "share", c->share[p], "ms", c->ms[p]));
    for (uint32_t p = 0; p < c->n_product; p++)
        json_array_append_new(products, json_pack("{s:s, s:f}", "product", c->products[p].shape,
                                                  "share", c->products[p].share));
    for (int arm = FM_ARM_CPU; arm <= FM_ARM_SPLIT; arm++)
        if (c->arm_ms[arm] > 0)
            json_object_set_new(arms, fm_arm_name((fm_arm)arm), json_real(c->arm_ms[arm]));
    return json_pack("{s:s, s:I, s:f, s:f, s:f, s:f, s:I, s:o, s:o, s:o}", "shape", c->shape,
                     "rows", (json_int_t)c->rows, "best", c->best, "gain", c->gain, "best_ms",
                     c->best_ms, "spent_ms", c->spent_ms, "measured", (json_int_t)c->measured,
                     "arm_ms", arms, "products", products, "points", points);
}

static int print_json(const fm_lab_calibration *found) {
    json_t *curves = json_array();
    for (uint32_t i = 0; i < found->n_curve; i++)
        json_array_append_new(curves, json_curve(&found->curves[i]));
    json_t *root =
        json_pack("{s:s, s:s, s:o}", "path", found->path, "key", found->key, "curves", curves);
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (text == NULL)
        return cli_fail_text("out of memory");
    puts(text);
    free(text);
    return CLI_OK;
}

/* ---- as a picture: small panels, two beside each other ---- */

enum { PANEL_WIDTH = 440, PANEL_HEIGHT = 240, LEFT = 64, TOP = 36, RIGHT = 20, BOTTOM = 44 };

static void put_escaped(FILE *to, const char *text) {
    for (; *text != '\0'; text++) {
        if (*text == '<' || *text == '>' || *text == '&')
            fprintf(to, "&#%d;", *text);
        else
            fputc(*text, to);
    }
}

static double x_of(double share) {
    return LEFT + share * (PANEL_WIDTH - LEFT - RIGHT);
}

static double y_of(double ms, double most) {
    return TOP + (1 - (most > 0 ? ms / most : 0)) * (PANEL_HEIGHT - TOP - BOTTOM);
}

static void put_axes(FILE *to, const curve *c, double most) {
    fprintf(to, "<text x=\"%d\" y=\"18\" class=\"title\">", LEFT);
    put_escaped(to, c->shape);
    fprintf(to, ", %u row%s: share %.2f, gain %.2f</text>\n", c->rows, cli_plural(c->rows), c->best,
            c->gain);
    for (int i = 0; i <= 5; i++) {
        double x = x_of(i / 5.0);
        fprintf(to,
                "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" class=\"grid\"/>"
                "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.1f</text>\n",
                x, TOP, x, PANEL_HEIGHT - BOTTOM, x, PANEL_HEIGHT - BOTTOM + 16, i / 5.0);
    }
    for (int i = 0; i <= 4; i++) {
        double ms = most * i / 4, y = y_of(ms, most);
        fprintf(to,
                "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" class=\"grid\"/>"
                "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.3g</text>\n",
                LEFT, y, PANEL_WIDTH - RIGHT, y, LEFT - 6, y + 4, ms);
    }
    fprintf(to,
            "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">share of the last unit</text>"
            "<text x=\"14\" y=\"%d\">ms</text>\n",
            x_of(0.5), PANEL_HEIGHT - 10, TOP);
}

static void put_curve(FILE *to, const curve *c, int column, int row) {
    double least, most;
    bounds(c, &least, &most);
    fprintf(to, "<g transform=\"translate(%d,%d)\">\n", column * PANEL_WIDTH, row * PANEL_HEIGHT);
    put_axes(to, c, most);
    fprintf(to, "<polyline class=\"curve\" points=\"");
    for (uint32_t i = 0; i < c->n_point; i++)
        fprintf(to, "%s%.1f,%.1f", i > 0 ? " " : "", x_of(c->share[i]), y_of(c->ms[i], most));
    fprintf(to, "\"/>\n");
    for (uint32_t i = 0; i < c->n_point; i++)
        fprintf(to, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%s\" class=\"%s\"/>\n", x_of(c->share[i]),
                y_of(c->ms[i], most), c->share[i] == c->best ? "5" : "3",
                c->share[i] == c->best ? "best" : "point");
    fprintf(to, "</g>\n");
}

static bool write_svg(const fm_lab_calibration *found, const char *path) {
    FILE *to = fopen(path, "w");
    int rows = (int)(found->n_curve + 1) / 2, columns = found->n_curve > 1 ? 2 : 1;
    if (to == NULL) {
        cli_fail_text("--svg: %s: %s", path, strerror(errno));
        return false;
    }
    fprintf(to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\">\n<style>text{font:12px sans-serif;fill:#333}"
            ".title{font-weight:bold}.grid{stroke:#ddd}.curve{fill:none;stroke:#3568a8;"
            "stroke-width:2}.point{fill:#3568a8}.best{fill:#c0392b}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            columns * PANEL_WIDTH, rows * PANEL_HEIGHT, columns * PANEL_WIDTH, rows * PANEL_HEIGHT);
    for (uint32_t i = 0; i < found->n_curve; i++)
        put_curve(to, &found->curves[i], (int)(i % 2), (int)(i / 2));
    fprintf(to, "</svg>\n");
    bool good = ferror(to) == 0;
    good = fclose(to) == 0 && good;
    if (!good)
        cli_fail_text("--svg: %s: write failed", path);
    return good;
}

/* Before minutes are spent on what could not be written. What is there stays as it is. */
static bool can_write(const char *path) {
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0) {
        close(file);
        return unlink(path) == 0;
    }
    if (errno == EEXIST) /* of a pipe nobody may read yet */
        file = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (file < 0 && errno != ENXIO) {
        cli_fail_text("--svg: %s: %s", path, strerror(errno));
        return false;
    }
    if (file >= 0)
        close(file);
    return true;
}

int cli_calibrate(const cli_args *args) {
    cli_args quiet = *args; /* without a gate nothing is tried while the model is loaded */
    quiet.no_gate = true;
    fm_machine *machine = NULL;
    fm_engine *engine = NULL;
    fm_lab_calibration found = {0};
    fm_error error = {0};
    fm_class numeric_class;
    int code = CLI_OK;
    if (!cli_class(args->numeric_class, FM_CLASS_AUTO, &numeric_class)) {
        cli_fail_text("--class: \"%s\" is neither exact nor fast", args->numeric_class);
        return CLI_USAGE;
    }
    if (args->svg != NULL && !can_write(args->svg))
        return CLI_FAILED;
    fm_status status = cli_open_machine(args, &machine, &error);
    if (status == FM_OK && !cli_has_two_units(machine, "calibration")) {
        fm_machine_destroy(&machine);
        return CLI_USAGE;
    }
    if (status == FM_OK)
        status = cli_open_engine(&quiet, numeric_class, machine, &engine, &error);
    if (status == FM_OK)
        status = fm_lab_calibrate(engine, show, NULL, &found, &error);
    cli_progress_end();
    if (status != FM_OK)
        code = cli_fail(&error);
    else if (args->json)
        code = print_json(&found);
    else
        print_text(&found);
    if (code == CLI_OK && args->svg != NULL && !write_svg(&found, args->svg))
        code = CLI_FAILED;
    fm_lab_calibration_free(&found);
    if (!cli_close_engine(&engine))
        code = CLI_FAILED;
    fm_machine_destroy(&machine);
    return code;
}
