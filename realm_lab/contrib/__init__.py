"""Parts beyond REALM itself, registered as a user's own parts would be: the core never imports them."""
