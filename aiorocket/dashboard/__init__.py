"""The web page of a cluster, on ``Admin``; see the README here. The extra ``dashboard`` brings what it needs."""
