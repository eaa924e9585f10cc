"""Train linear probes on values."""
