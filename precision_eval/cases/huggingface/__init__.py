"""Checkpoints and classes of transformers and diffusers as cases; the libraries load when a case is made."""
