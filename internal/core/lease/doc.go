// Package lease holds the rules by which keys are handed out, and the contract
// of the stores that keep them. It does no I/O; time arrives as an argument.
//
// # How the parts fit
//
// A store runs [Op]s in transactions that exclude each other over the whole
// database. Inside one it calls [Apply], which asks the transaction ([Tx]) for
// the rows that the ops concern, lets the rules decide ([Step] for one key,
// [Eligible] and the queue for a take), and hands back what to keep. SQL finds
// and keeps; it holds no rule. The time of a transaction is the database's
// clock, read once after the lock was got, and never before an earlier
// transaction's.
//
// # What holds
//
//   - A key has at most one lease at a time, over all pools that list it.
//   - Fences come from one counter of the database: a later lease has a greater
//     one, also on a key whose row was removed and made again.
//   - A lease is ended by its holder (who knows its secret), by its time, by an
//     admin, or because what carried the key's name is gone. Nothing else frees
//     a key.
//   - The oldest live waiter that can use a key gets it; newcomers stand behind.
//     A waiter that left is never granted anything.
//   - Expiry, the end of a cooldown and the end of a change need no writer: they
//     are seen by whoever reads the row later ([Key.Settle]).
package lease
