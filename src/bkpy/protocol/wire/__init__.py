"""What goes over connections: frames, messages, entry records, and how received bytes become frames."""
