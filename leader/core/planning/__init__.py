"""Who should hold which stream: strategies and their arithmetic. Pure."""
