"""The model: reading and writing it, the editor that passes use, and what is known of its shapes."""
