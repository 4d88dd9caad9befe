"""Policies of quintet on the Hugging Face Hub: ``quintet push``, ``quintet pull``, ``hf:REPO``."""
