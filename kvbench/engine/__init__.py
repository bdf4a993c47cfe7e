"""Prefill once, decode every branch of a sample together."""

from kvbench.engine.decode import decode
from kvbench.engine.generate import Answer, generate
from kvbench.engine.prefill import Prefill, prefill

__all__ = ["Answer", "Prefill", "decode", "generate", "prefill"]
