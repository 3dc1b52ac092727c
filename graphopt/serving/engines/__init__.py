"""What runs inside an engine; each file needs its engine, and nothing else imports it."""
