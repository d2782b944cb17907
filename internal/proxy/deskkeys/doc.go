// Package deskkeys keeps the desk's rows in line with Proxies and ProxyPools:
// one key for each Proxy, with what takers may ask for, and why it is not
// handed out when it is not.
//
// Only the leader writes, under an epoch that it opens when it begins: a former
// leader that does not know yet that it is none is refused by the database. Rows
// follow the manager's cache. A change costs one look at the object and, when
// the row differs, one op in a transaction that it shares with up to 255
// others; a change of a pool's spec costs a look at every Proxy of its
// namespace. All rows are compared with the database at the start and every
// few minutes, which costs one page of rows for each few hundred.
//
// A database that does not answer delays rows and nothing else.
package deskkeys
