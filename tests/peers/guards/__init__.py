"""Guards in front of mail servers, which ban clients that name unknown recipients."""
