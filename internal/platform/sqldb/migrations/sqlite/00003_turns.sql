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
ALTER TABLE keys ADD COLUMN since INTEGER NOT NULL DEFAULT 0; -- earlier numbers are of another machine
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
ALTER TABLE cooldowns ADD COLUMN uses TEXT NOT NULL DEFAULT ''; -- fence=end=account of those in flight, with commas between
CREATE INDEX cooldowns_by_ban ON cooldowns (banned_until, scope, id) WHERE banned_until > 0;

-- The order of a pool's keys for a target: an index, which may be dropped at any
-- time. `asked` is a hash of the attributes that are asked for, '' for none.
CREATE TABLE lines (
    pool   TEXT    NOT NULL,
    target TEXT    NOT NULL,
    asked  TEXT    NOT NULL,
    no     INTEGER NOT NULL, -- of its places; never used twice
    began  INTEGER NOT NULL,
    used   INTEGER NOT NULL,
    first  INTEGER NOT NULL, -- later seats are of keys that joined since
    mark   INTEGER NOT NULL, -- keys of later seats have no place yet
    PRIMARY KEY (pool, target, asked)
) STRICT, WITHOUT ROWID;
CREATE INDEX lines_by_use ON lines (used, no);

-- Where a line has a key: until when it is parked (0 for not at all), and its turn.
CREATE TABLE places (
    line   INTEGER NOT NULL,
    parked INTEGER NOT NULL,
    turn   INTEGER NOT NULL,
    own    INTEGER NOT NULL, -- its turn without that of its address
    seat   INTEGER NOT NULL,
    key    TEXT    NOT NULL,
    PRIMARY KEY (line, parked, turn, own, seat)
) STRICT, WITHOUT ROWID;

-- Lines that are gone, as long as they have places.
CREATE TABLE old_lines (
    no INTEGER NOT NULL PRIMARY KEY
) STRICT;
