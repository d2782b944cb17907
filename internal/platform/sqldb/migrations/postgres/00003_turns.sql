-- +goose Up

-- Programs of before know neither turns nor uses in flight: a pick of theirs would
-- leave the order of keys wrong, and a key that they write has no seat.
UPDATE fleetdesk.schema_info SET min_reader = 3;

ALTER TABLE fleetdesk.pools ADD COLUMN in_flight bigint NOT NULL DEFAULT 0; -- 0 for any number
ALTER TABLE fleetdesk.pools ADD COLUMN new_share bigint NOT NULL DEFAULT 0; -- of a hundred
ALTER TABLE fleetdesk.pools ADD COLUMN sites boolean NOT NULL DEFAULT false;

ALTER TABLE fleetdesk.keys ADD COLUMN weight bigint NOT NULL DEFAULT 0; -- percent, 0 for 100
ALTER TABLE fleetdesk.keys ADD COLUMN joined bigint NOT NULL DEFAULT 0;
ALTER TABLE fleetdesk.keys ADD COLUMN seat bigint NOT NULL DEFAULT 0;
ALTER TABLE fleetdesk.keys ADD COLUMN since bigint NOT NULL DEFAULT 0; -- earlier numbers are of another machine
ALTER TABLE fleetdesk.members ADD COLUMN seat bigint NOT NULL DEFAULT 0;

-- Keys of before stand at the head of the line, by name.
UPDATE fleetdesk.keys t SET seat = d.counter + n.seat
FROM fleetdesk.desk d, (SELECT k.name, row_number() OVER (ORDER BY k.name) AS seat FROM fleetdesk.keys k WHERE k.managed) n WHERE n.name = t.name;
UPDATE fleetdesk.desk SET counter = greatest(counter, (SELECT coalesce(max(k.seat), 0) FROM fleetdesk.keys k));
UPDATE fleetdesk.members t SET seat = k.seat FROM fleetdesk.keys k WHERE k.name = t.key;
CREATE INDEX members_by_seat ON fleetdesk.members (pool, seat) WHERE seat > 0;
CREATE INDEX keys_by_exit_ip ON fleetdesk.keys (exit_ip) WHERE exit_ip <> '';

ALTER TABLE fleetdesk.tickets ADD COLUMN matching text NOT NULL DEFAULT ''; -- JSON, '' for none

ALTER TABLE fleetdesk.cooldowns ADD COLUMN turn bigint NOT NULL DEFAULT 0;
ALTER TABLE fleetdesk.cooldowns ADD COLUMN uses text NOT NULL DEFAULT ''; -- fence=end=account of those in flight, with commas between
CREATE INDEX cooldowns_by_ban ON fleetdesk.cooldowns (banned_until, scope, id) WHERE banned_until > 0;

-- The order of a pool's keys for a target: an index, which may be dropped at any
-- time. `asked` is a hash of the attributes that are asked for, '' for none.
CREATE TABLE fleetdesk.lines (
    pool   text COLLATE "C" NOT NULL,
    target text COLLATE "C" NOT NULL,
    asked  text COLLATE "C" NOT NULL,
    no     bigint           NOT NULL, -- of its places; never used twice
    began  bigint           NOT NULL,
    used   bigint           NOT NULL,
    first  bigint           NOT NULL, -- later seats are of keys that joined since
    mark   bigint           NOT NULL, -- keys of later seats have no place yet
    PRIMARY KEY (pool, target, asked)
);
CREATE INDEX lines_by_use ON fleetdesk.lines (used, no);

-- Where a line has a key: until when it is parked (0 for not at all), and its turn.
CREATE TABLE fleetdesk.places (
    line   bigint           NOT NULL,
    parked bigint           NOT NULL,
    turn   bigint           NOT NULL,
    own    bigint           NOT NULL, -- its turn without that of its address
    seat   bigint           NOT NULL,
    key    text COLLATE "C" NOT NULL,
    PRIMARY KEY (line, parked, turn, own, seat)
);

-- Lines that are gone, as long as they have places.
CREATE TABLE fleetdesk.old_lines (
    no bigint NOT NULL PRIMARY KEY
);
