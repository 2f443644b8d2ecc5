"""Producer, consumer and the client they share. ``aiorocket/client/README.md`` says which file holds what."""
