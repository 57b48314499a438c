-- What a message's sender told its agent beside the message; a message that waits over a restart has it still.
ALTER TABLE runs ADD COLUMN instructions TEXT;
