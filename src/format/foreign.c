/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format/foreign.c: says what a file that cannot be opened looks like.
 *
 * Owns: the table of other formats' first bytes. Never does: read past the first few kilobytes.
 * Called from: the loading thread.
 */
#include <string.h>

#include "format/format.h"

typedef struct signature {
    uint8_t offset, bytes;
    const char *data;
    const char *looks; /* "looks like ..." */
} signature;

/* clang-format off */
static const signature signatures[] = {
    {0, 20, "version https://git-", "a Git-LFS pointer, not the file itself (git lfs pull fetches it)"},
    {0, 4, "FUGG", "a GGUF with its bytes swapped (big-endian)"},
    {0, 4, "lmgg", "a ggml file from before GGUF (magic \"ggml\"), convert it to GGUF"},
    {0, 4, "fmgg", "a ggml file from before GGUF (magic \"ggmf\"), convert it to GGUF"},
    {0, 4, "tjgg", "a ggml file from before GGUF (magic \"ggjt\"), convert it to GGUF"},
    {0, 4, "algg", "a ggml LoRA adapter (magic \"ggla\")"},
    {0, 4, "nsgg", "a llama.cpp session (magic \"ggsn\")"},
    {0, 4, "qsgg", "a llama.cpp sequence state (magic \"ggsq\")"},
    {0, 4, "PK\x03\x04", "a zip archive (PyTorch's .bin and .pt files are such), convert it to safetensors"},
    {0, 4, "PK\x05\x06", "an empty zip archive"},
    {0, 2, "\x80\x02", "a Python pickle (an old PyTorch checkpoint), convert it to safetensors"},
    {0, 2, "\x80\x03", "a Python pickle (an old PyTorch checkpoint), convert it to safetensors"},
    {0, 2, "\x80\x04", "a Python pickle, convert it to safetensors"},
    {0, 2, "\x80\x05", "a Python pickle, convert it to safetensors"},
    {0, 2, "\x1F\x8B", "gzip-compressed data, unpack it first"},
    {0, 3, "BZh", "bzip2-compressed data, unpack it first"},
    {0, 6, "\xFD" "7zXZ\0", "xz-compressed data, unpack it first"},
    {0, 4, "\x28\xB5\x2F\xFD", "zstd-compressed data, unpack it first"},
    {0, 4, "\x04\x22\x4D\x18", "lz4-compressed data, unpack it first"},
    {0, 6, "7z\xBC\xAF\x27\x1C", "a 7-Zip archive, unpack it first"},
    {0, 6, "Rar!\x1A\x07", "a RAR archive, unpack it first"},
    {0, 4, "\x7F" "ELF", "a program or library (ELF)"},
    {0, 2, "MZ", "a Windows or llamafile program"},
    {0, 4, "\xCF\xFA\xED\xFE", "a program (Mach-O)"},
    {0, 5, "%PDF-", "a PDF document"},
    {0, 8, "\x89HDF\r\n\x1A\n", "an HDF5 file (Keras)"},
    {0, 6, "\x93NUMPY", "a NumPy array"},
    {4, 4, "TFL3", "a TensorFlow Lite model"},
    {0, 16, "SQLite format 3\0", "an SQLite database"},
    {0, 4, "\x89PNG", "a PNG image"},
    {0, 3, "\xFF\xD8\xFF", "a JPEG image"},
    {0, 2, "\xFF\xFE", "UTF-16 text"},
    {0, 2, "\xFE\xFF", "UTF-16 text"},
};
/* clang-format on */

enum { TAR_MAGIC_AT = 257, TEXT_WINDOW = 512, ZERO_WINDOW = 4096 };

static bool begins(const uint8_t *data, size_t bytes, const char *lower) {
    size_t n = strlen(lower);
    if (bytes < n)
        return false;
    for (size_t i = 0; i < n; i++) {
        uint8_t c = data[i];
        if ((c >= 'A' && c <= 'Z' ? c + 32 : c) != (uint8_t)lower[i])
            return false;
    }
    return true;
}

bool fm__foreign_is_safetensors(const uint8_t *data, size_t bytes) {
    if (bytes < 10 || data[8] != '{')
        return false;
    uint64_t header = fm__load_le(data, 8);
    /* A cut file still is one: seven of the length's bytes are not text. */
    return header >= 2 && header < (UINT64_C(1) << 40);
}

static const char *binary_look(const uint8_t *data, size_t bytes) {
    for (size_t i = 0; i < sizeof signatures / sizeof *signatures; i++) {
        const signature *s = &signatures[i];
        if (bytes >= (size_t)s->offset + s->bytes &&
            memcmp(data + s->offset, s->data, s->bytes) == 0)
            return s->looks;
    }
    if (bytes >= TAR_MAGIC_AT + 5 && memcmp(data + TAR_MAGIC_AT, "ustar", 5) == 0)
        return "a tar archive, unpack it first";
    if (fm__foreign_is_safetensors(data, bytes))
        return "a safetensors file";
    for (size_t i = 0; i < fm__min_size(bytes, ZERO_WINDOW); i++)
        if (data[i] != 0)
            return NULL;
    return "an unfinished download (it begins with zeros only)";
}

static bool is_text(const uint8_t *data, size_t bytes) {
    size_t window = fm__min_size(bytes, TEXT_WINDOW);
    for (size_t i = 0; i < window;) {
        uint32_t c = 0;
        int length = fm__utf8_next((const char *)data + i, window - i, &c);
        if (length == 0 || (length > 0 && c < 0x20 && c != '\n' && c != '\r' && c != '\t'))
            return false;
        if (length < 0)
            return window < bytes; /* cut by the window only */
        i += (size_t)length;
    }
    return true;
}

/* The text's first characters that are not white space. */
static fm__str text_start(const uint8_t *data, size_t bytes) {
    if (bytes >= 3 && memcmp(data, "\xEF\xBB\xBF", 3) == 0) {
        data += 3;
        bytes -= 3;
    }
    while (bytes > 0 && (*data == ' ' || *data == '\t' || *data == '\r' || *data == '\n')) {
        data++;
        bytes--;
    }
    return (fm__str){(const char *)data, bytes};
}

static const char *text_look(fm__str start) {
    const uint8_t *data = (const uint8_t *)start.data;
    if (begins(data, start.bytes, "<!doctype html") || begins(data, start.bytes, "<html") ||
        begins(data, start.bytes, "<head"))
        return "an HTML page (a download that gave a web page instead of the file)";
    if (begins(data, start.bytes, "<?xml") || begins(data, start.bytes, "<error"))
        return "an XML document (a download's error message?)";
    if (start.bytes > 0 && (start.data[0] == '{' || start.data[0] == '['))
        return "JSON text; for a Hugging Face model give its folder";
    return NULL;
}

fm_status fm__foreign_error(const uint8_t *data, size_t bytes, const char *path, fm_error *error) {
    const fm__str none = FM__STR("");
    if (bytes == 0)
        return fm__format_error(error, FM_ERROR_FORMAT, path, NULL, none, "the file is empty");
    if (bytes < 4 && memcmp(data, "GGUF", bytes) == 0)
        return fm__format_error(error, FM_ERROR_FORMAT, path, NULL, none,
                                "the file ends at offset %zu, inside the magic of a GGUF", bytes);
    const char *looks = binary_look(data, bytes);
    if (looks == NULL && is_text(data, bytes)) {
        fm__str start = text_start(data, bytes);
        char shown[60];
        looks = text_look(start);
        if (looks == NULL)
            return fm__format_error(error, FM_ERROR_FORMAT, path, NULL, none,
                                    "not a GGUF file; it looks like plain text: \"%s\"",
                                    fm__format_escape(start, shown, sizeof shown));
    }
    if (looks != NULL)
        return fm__format_error(error, FM_ERROR_FORMAT, path, NULL, none,
                                "not a GGUF file; it looks like %s", looks);
    char first[3 * 8 + 1] = "";
    for (size_t i = 0; i < fm__min_size(bytes, 8); i++)
        snprintf(first + 3 * i, 4, "%02x ", data[i]);
    return fm__format_error(error, FM_ERROR_FORMAT, path, NULL, none,
                            "not a GGUF file; its first bytes (%shex) are of no known format",
                            first);
}
