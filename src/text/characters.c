/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text/characters.c: classes of characters, and the two ways in which vocabularies spell bytes.
 *
 * Owns: nothing. Never does: allocating other than into the caller's buffer. Called from: any
 * thread.
 */
#include <utf8proc.h>

#include "text/internal.h"

bool fm__is_white_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 32 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

bool fm__is_word(uint32_t code_point) {
    /* Beyond the categories: numbers of Latin-1 and letters in circles and squares. */
    static const uint32_t others[][2] = {{0xb2, 0xb3},      {0xb9, 0xb9},       {0xbc, 0xbe},
                                         {0x24b6, 0x24e9},  {0x1f130, 0x1f149}, {0x1f150, 0x1f169},
                                         {0x1f170, 0x1f189}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (code_point >= others[i][0] && code_point <= others[i][1])
            return true;
    switch (utf8proc_category((utf8proc_int32_t)code_point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return false;
    }
}

bool fm__is_number(uint32_t code_point, bool decimal) {
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code_point);
    return category == UTF8PROC_CATEGORY_ND ||
           (!decimal && (category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO));
}

/* Bytes that the alphabet spells as themselves: 21..7E, A1..AC, AE..FF (as Latin-1). The other 68
   follow from U+0100 on, in byte order. */
static bool is_plain(unsigned byte) {
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
}

uint32_t fm__byte_to_code(uint8_t byte) {
    if (is_plain(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    return byte == 0xad ? 0x143u : 0x100u + 33 + (byte - 0x7fu);
}

int fm__code_to_byte(uint32_t code_point) {
    if (code_point < 0x100)
        return is_plain(code_point) ? (int)code_point : -1;
    if (code_point <= 0x120)
        return (int)code_point - 0x100;
    if (code_point <= 0x142)
        return (int)code_point - 0x121 + 0x7f;
    return code_point == 0x143 ? 0xad : -1;
}

bool fm__alphabet_decode(fm__str spelling, fm__buf *out) {
    size_t before = out->bytes;
    for (size_t at = 0; at < spelling.bytes;) {
        uint32_t code_point = 0;
        int length = fm__utf8_next(spelling.data + at, spelling.bytes - at, &code_point);
        int byte = length > 0 ? fm__code_to_byte(code_point) : -1;
        if (byte < 0) {
            out->bytes = before;
            return false;
        }
        char c = (char)byte;
        fm__buf_append(out, &c, 1);
        at += (size_t)length;
    }
    return !out->failed;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int fm__byte_spelling(fm__str s) {
    if (s.bytes != 6 || s.data[0] != '<' || s.data[1] != '0' || s.data[2] != 'x' ||
        s.data[5] != '>')
        return -1;
    int high = hex_digit(s.data[3]), low = hex_digit(s.data[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}
