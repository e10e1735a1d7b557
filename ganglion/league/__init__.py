"""A league: players that learn against opponents chosen by what is known of their strength."""
