"""The sidecar: reads stats pages, writes commands; REST, events, Prometheus. Never imports torch."""
