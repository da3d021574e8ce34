/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/power.c: what feeds the machine. Clocks differ with it, so figures do.
 *
 * Owns: nothing. Never does: caching: each call asks the system. Called from: every thread, never
 * while a model runs.
 *
 * Linux lists supplies as folders with one word a file. A battery counts when it feeds the machine
 * itself, not a mouse (scope "Device"). macOS would need a framework of its own: NONE there.
 */
#include <dirent.h>
#include <string.h>

#include "base/base.h"

static const char FOLDER[] = "/sys/class/power_supply";

const char *fm__power_name(fm__power power) {
    return power == FM__POWER_BATTERY ? "battery" : power == FM__POWER_AC ? "ac" : "none";
}

/* The first line of supply/file; "" if there is none. */
static void read_word(const char *folder, const char *supply, const char *file, char out[32]) {
    char path[1280];
    out[0] = 0;
    int length = snprintf(path, sizeof path, "%s/%s/%s", folder, supply, file);
    if (length < 0 || (size_t)length >= sizeof path)
        return;
    FILE *stream = fopen(path, "re");
    if (stream == NULL)
        return;
    if (fgets(out, 32, stream) == NULL)
        out[0] = 0;
    fclose(stream);
    out[strcspn(out, "\n")] = 0;
}

typedef struct supplies {
    bool mains, battery, discharging;
} supplies;

static void look_at(const char *folder, const char *supply, supplies *s) {
    char type[32], value[32];
    read_word(folder, supply, "type", type);
    if (strcmp(type, "Battery") == 0) {
        read_word(folder, supply, "scope", value);
        if (strcmp(value, "Device") == 0)
            return;
        s->battery = true;
        read_word(folder, supply, "status", value);
        s->discharging = s->discharging || strcmp(value, "Discharging") == 0;
    } else if (strcmp(type, "Mains") == 0 || strncmp(type, "USB", 3) == 0) {
        read_word(folder, supply, "online", value);
        s->mains = s->mains || strcmp(value, "1") == 0;
    }
}

fm__power fm__power_source(const char *root) {
    char folder[1024];
    supplies s = {.mains = false};
    int length = snprintf(folder, sizeof folder, "%s%s", root, FOLDER);
    DIR *directory = length > 0 && (size_t)length < sizeof folder ? opendir(folder) : NULL;
    if (directory == NULL)
        return FM__POWER_NONE;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        if (entry->d_name[0] != '.')
            look_at(folder, entry->d_name, &s);
    closedir(directory);
    if (s.discharging)
        return FM__POWER_BATTERY;
    return s.mains || s.battery ? FM__POWER_AC : FM__POWER_NONE;
}
