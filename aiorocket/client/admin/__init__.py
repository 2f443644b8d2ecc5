"""Administration: what people do with a cluster besides sending and consuming."""
