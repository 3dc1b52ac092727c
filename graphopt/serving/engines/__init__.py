"""Code that runs inside engines. Each file imports its engine, and nothing else imports the file."""
