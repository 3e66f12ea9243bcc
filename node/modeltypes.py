"""The words for kinds of models, documented and real."""

from __future__ import annotations

import re

TASKS = (
    "auto",
    "audio-classification",
    "audio-frame-classification",
    "audio-tokenization",
    "audio-x-vector",
    "causal-lm",
    "ctc",
    "depth-estimation",
    "document-question-answering",
    "image-classification",
    "image-segmentation",
    "image-text-to-text",
    "image-to-image",
    "instance-segmentation",
    "keypoint-detection",
    "keypoint-matching",
    "mask-generation",
    "masked-lm",
    "multiple-choice",
    "next-sentence-prediction",
    "object-detection",
    "pre-training",
    "question-answering",
    "semantic-segmentation",
    "seq2seq-lm",
    "sequence-classification",
    "speech-seq2seq",
    "table-question-answering",
    "text-encoding",
    "text-to-spectrogram",
    "text-to-waveform",
    "time-series-prediction",
    "token-classification",
    "torch",
    "universal-segmentation",
    "video-classification",
    "vision2seq",
    "visual-question-answering",
    "zero-shot-image-classification",
    "zero-shot-object-detection",
)
"""Model types: the Auto classes of Transformers in kebab-case, and `torch` for a module of the job's own."""
_ALIASES = {
    "vision-classification": "image-classification",
    "seq2-seq-lm": "seq2seq-lm",
    "speech-seq2-seq": "speech-seq2seq",
    "vision2-seq": "vision2seq",
    "auto-model": "auto",
}
PREPROCESSORS = ("auto", "tokenizer", "image-processor", "feature-extractor", "video-processor", "processor", "torch")
"""Preprocessor types, beside every model type."""


def normalised(written: str) -> str:
    """A model type in the real vocabulary, whatever its spelling; unknown words come back as they are."""
    kind = re.sub(r"[_\s]", "-", written.strip()).lower()
    return _ALIASES.get(kind, kind)
