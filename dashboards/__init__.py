"""What a person looks at: the live page, Grafana dashboards, Prometheus rules."""
