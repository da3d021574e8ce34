/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format/json.c: JSON objects from untrusted text.
 *
 * Owns: nothing. Never does: accept a key twice in one object. Called from: the loading thread.
 */
#include <jansson.h>

#include "format/format.h"

fm_status fm__format_json(struct json_t **out, const char *text, size_t bytes, size_t offset,
                          const char *path, fm_error *error) {
    json_error_t fault;
    char shown[200];
    *out = NULL;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &fault);
    if (root == NULL && json_error_code(&fault) == json_error_out_of_memory)
        return fm__error_memory(error, path, bytes);
    if (root == NULL)
        return fm__format_error(error, FM_ERROR_FORMAT, path, NULL, FM__STR(""),
                                "not valid JSON at offset %zu: %s",
                                offset + (size_t)(fault.position > 0 ? fault.position : 0),
                                fm__format_escape(fm__str_of(fault.text), shown, sizeof shown));
    if (!json_is_object(root)) {
        json_decref(root);
        return fm__format_error(error, FM_ERROR_FORMAT, path, NULL, FM__STR(""),
                                "the JSON at offset %zu is not an object", offset);
    }
    *out = root;
    return FM_OK;
}
