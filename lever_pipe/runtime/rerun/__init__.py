"""Content-based reruns: check artifacts by manifests and digests, explain reruns, and skip finished jobs."""
