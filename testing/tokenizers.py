"""Tokenizers of each kind, trained on a few words, and text fields for them."""

from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from contracts.text_fields import FULL_TEXT_STEPS, TextField

WORDS = "the dress fits well and i love how soft it feels but unbelievably short sleeves returned it on 12 may !"
CORPUS = [" ".join(WORDS.split()[start:] + WORDS.split()[:start]) for start in range(len(WORDS.split()))] * 5
CORPUS += ["wide    gaps   count"] * 100  # byte-level vocabularies learn runs of spaces
KINDS = ["wordpiece", "byte_level", "metaspace"]


@cache
def trained(kind: str) -> str:
    """A tokenizer as BERT, RoBERTa or XLM-R has it; whole_text, as Llama has it, has no pre-tokenizer."""
    if kind == "wordpiece":
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        tokenizer = Tokenizer(models.WordPiece({}, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=special, show_progress=False)
    elif kind == "byte_level":
        special = ["<s>", "<pad>", "</s>", "<unk>"]
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=330, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
    elif kind == "whole_text":
        special = ["<s>", "<pad>", "</s>", "<unk>"]
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")  # for the training only
        trainer = trainers.BpeTrainer(vocab_size=90, special_tokens=special, show_progress=False)
    else:
        special = ["<s>", "<pad>", "</s>", "<unk>"]
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("``", '"')])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=90, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    if kind == "whole_text":
        tokenizer.pre_tokenizer = None  # pyright: ignore[reportAttributeAccessIssue]  # the stub lacks None
    if kind == "wordpiece":
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    elif kind == "byte_level":
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    else:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
    return tokenizer.to_str()


def field(*steps: str, max_sen_len: int = 512, max_chunks: int | None = None) -> TextField:
    """A text field with some steps and the tokenizer; by default, with all steps."""
    return TextField(
        role="text",
        column="body",
        tokenizer="any",
        steps=(*steps, "tokenizer") if steps else FULL_TEXT_STEPS,
        max_sen_len=max_sen_len,
        max_chunks=max_chunks,
    )
