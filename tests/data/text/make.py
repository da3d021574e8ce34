# SPDX-License-Identifier: Apache-2.0
"""Makes the small tokenizers and the vectors in this folder. Needs PyPI's tokenizers (0.23 was used) and
sentencepiece (0.2.3). story_tokenizer.json and story_vectors.json belong to the story model.

    python3 make.py

A vector without "decoded" decodes to its text, one without "kept" to its decoded text.
The ids, decoded texts and cuts in the vectors are what those two packages say, not what FusionML says.
"""
import json
import os
import random
import tempfile

import sentencepiece
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

random.seed(20)
WORDS = ("the a an of it and to in is was he she they said little big red old cat dog sun tree house "
         "it's don't we'll I'd HTML camelCase snake_case 12 345 6789 été naïve Straße привет мир "
         "中文 字符 日本語 😀 👩‍👩‍👧 नमस्ते 각 각").split(" ")
LINES = [" ".join(random.choice(WORDS) for _ in range(12)) + random.choice([".", "!", "?\n", "...", "\r\n", "\t"])
         for _ in range(600)]
LLAMA3 = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
          "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")


def byte_level(pattern, normalizer):
    t = Tokenizer(models.BPE())
    t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(LINES, trainers.BpeTrainer(
        vocab_size=380, special_tokens=["<s>", "</s>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("<left>", lstrip=True, normalized=False),
                  AddedToken("<right>", rstrip=True, normalized=True),
                  AddedToken("word", single_word=True, normalized=False), AddedToken("   ", normalized=False)])
    t.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im|>"), AddedToken("<|im_end|>")])
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    return t


def pieces(model_type, folder):
    path = os.path.join(folder, model_type)
    with open(path + ".txt", "w", encoding="utf8") as file:
        file.write("\n".join(line.strip() for line in LINES))
    sentencepiece.SentencePieceTrainer.train(
        input=path + ".txt", model_prefix=path, vocab_size=360, model_type=model_type, byte_fallback=True,
        character_coverage=0.99, normalization_rule_name="identity", remove_extra_whitespaces=False,
        minloglevel=2)
    sp = sentencepiece.SentencePieceProcessor(model_file=path + ".model")
    return [(sp.id_to_piece(i), sp.get_score(i)) for i in range(sp.get_piece_size())]


def merged(table):
    """The merges that converters make of a model by scores: every pair whose text is a piece."""
    ids = {piece: i for i, (piece, _) in enumerate(table)}
    merges = []
    for piece, score in table[259:]:
        pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in ids and piece[i:] in ids]
        merges += [(-score, a, b) for a, b in sorted(pairs, key=lambda p: (ids[p[0]], ids[p[1]]))]
    return ids, [(a, b) for _, a, b in sorted(merges, key=lambda m: m[0])]


def marked_bpe(table, prefix):
    ids, merges = merged(table)
    t = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [normalizers.Prepend("▁")] if prefix else []
    t.normalizer = normalizers.Sequence(steps + [normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()] +
                                  ([decoders.Strip(" ", 1, 0)] if prefix else []))
    t.add_special_tokens([AddedToken(x, normalized=False) for x in ("<unk>", "<s>", "</s>")])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return t


def unigram(table):
    t = Tokenizer(models.Unigram(table, unk_id=0, byte_fallback=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    t.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
    t.add_special_tokens([AddedToken(x, normalized=False) for x in ("<unk>", "<s>", "</s>")])
    return t


ATOMS = WORDS + ["", " ", "  ", "   ", "    ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u180e", "\u200b",
                 "\u0085", "\u2028", "\0", "\x7f", "e\u0301", "\u1100\u1161\u11a8", "ﬁ", "½²", "Ⅷ", "٣٤٥", "1234567",
                 "12a", "İ", "ß", "'S", "'ſ", "▁", "▁▁", "<tool>", " <left> ", "<right>   ", "word", "sword", "<s>",
                 "</s>", "<|im_start|>", "<|im|>", "<|im", "<|im_end|>", "<unk>", "XMLHttp", "http://a.b/c?d=e", "!!!",
                 "\U0001f1fa\U0001f1f8", "\ufffd", "\ufeff", "$+<=>^`|~", "—«»", "\U0010ffff", "\ue000", "Ⓐ_"]
TEXTS = [chr(c) for c in range(256)] + ["".join(random.choice(ATOMS) for _ in range(random.randint(0, 10)))
                                        for _ in range(64)]


def vectors(t):
    out = []
    for text in TEXTS:
        ids = t.encode(text, add_special_tokens=False).ids
        entry = {"text": text, "ids": ids}
        decoded, kept = t.decode(ids, skip_special_tokens=True), t.decode(ids, skip_special_tokens=False)
        if decoded != text:
            entry["decoded"] = decoded
        if kept != decoded:
            entry["kept"] = kept
        out.append(entry)
    return out


def save(name, t):
    """Compact, one list a line where it matters little: these files are data."""
    with open(name + ".json", "w", encoding="utf8") as file:
        json.dump(json.loads(t.to_str()), file, ensure_ascii=True, separators=(",", ":"))
    with open(name + "_vectors.json", "w", encoding="utf8") as file:
        json.dump(vectors(t), file, ensure_ascii=True, separators=(",", ":"))


with tempfile.TemporaryDirectory() as scratch:
    bpe, uni = pieces("bpe", scratch), pieces("unigram", scratch)
save("bytes", byte_level(QWEN2, normalizers.NFC()))
save("marked", marked_bpe(bpe, True))
save("unprefixed", marked_bpe(bpe, False))
save("unigram", unigram(uni))

# cuts.json: how each pattern of src/text/pretokenizers.c cuts, byte counts of the pieces. The patterns are kept in
# the file; the cuts are made anew from them.
with open("cuts.json", encoding="utf8") as file:
    cuts = json.load(file)
cuts["texts"] = ["".join(random.choice(ATOMS) for _ in range(8)) for _ in range(40)]
for entry in cuts["names"]:
    entry["cuts"] = []
    for text in cuts["texts"]:
        parts = [text]
        for pattern in entry["patterns"]:
            split = pre_tokenizers.Split(Regex(pattern), "isolated")
            parts = [part for whole in parts for part, _ in split.pre_tokenize_str(whole)]
        entry["cuts"].append([len(part.encode()) for part in parts])
with open("cuts.json", "w", encoding="utf8") as file:
    json.dump(cuts, file, ensure_ascii=True, separators=(",", ":"))
