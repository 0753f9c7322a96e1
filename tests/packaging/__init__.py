"""What is handed out, and where it runs."""
