-- +goose Up

-- Programs of before know neither turns nor uses in flight: a pick of theirs would
-- leave the order of keys wrong, and a key that they write has no seat.
UPDATE schema_info SET min_reader = 3;

ALTER TABLE pools ADD COLUMN in_flight INTEGER NOT NULL DEFAULT 0; -- 0 for any number
ALTER TABLE pools ADD COLUMN new_share INTEGER NOT NULL DEFAULT 0; -- of a hundred
ALTER TABLE pools ADD COLUMN sites INTEGER NOT NULL DEFAULT 0;

ALTER TABLE keys ADD COLUMN weight INTEGER NOT NULL DEFAULT 0; -- percent, 0 for 100
ALTER TABLE keys ADD COLUMN joined INTEGER NOT NULL DEFAULT 0;
ALTER TABLE keys ADD COLUMN seat INTEGER NOT NULL DEFAULT 0;
ALTER TABLE members ADD COLUMN seat INTEGER NOT NULL DEFAULT 0;

-- Keys of before stand at the head of the line, by name.
UPDATE keys SET seat = (SELECT d.counter FROM desk d) + n.seat
FROM (SELECT k.name, row_number() OVER (ORDER BY k.name) AS seat FROM keys k WHERE k.managed) n WHERE n.name = keys.name;
UPDATE desk SET counter = max(counter, (SELECT coalesce(max(k.seat), 0) FROM keys k));
UPDATE members SET seat = (SELECT k.seat FROM keys k WHERE k.name = members.key);
CREATE INDEX members_by_seat ON members (pool, seat) WHERE seat > 0;
CREATE INDEX keys_by_exit_ip ON keys (exit_ip) WHERE exit_ip <> '';

ALTER TABLE tickets ADD COLUMN matching TEXT NOT NULL DEFAULT ''; -- JSON, '' for none

ALTER TABLE cooldowns ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;
ALTER TABLE cooldowns ADD COLUMN uses TEXT NOT NULL DEFAULT ''; -- fence=end of those in flight, with commas between
CREATE INDEX cooldowns_by_ban ON cooldowns (banned_until, scope, id) WHERE banned_until > 0;
