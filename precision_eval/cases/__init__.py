"""What is measured: the systems, the voice, and adapters to other libraries' models and to one's own."""
