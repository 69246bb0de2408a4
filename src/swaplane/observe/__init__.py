"""What people and tools see of a running gateway: logs, metrics, history."""
