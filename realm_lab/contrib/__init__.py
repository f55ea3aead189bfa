"""Parts beyond REALM itself, registered like custom parts: the core never imports them."""
