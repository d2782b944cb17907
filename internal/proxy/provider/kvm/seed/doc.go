// Package seed builds what a guest reads at its first boot: a NoCloud ISO image
// with the user's cloud-init data, byte for byte, and vendor-data of ours beside
// it that brings the guest agent.
//
// Nothing of the user's is ever parsed, merged or written anew. What the agent
// needs travels as vendor-data that is a shell script, which cloud-init runs on
// a path of its own: merging it into the user's data would break templates and
// archives, turn 1.10 into 1.1, and lose lists that both have.
package seed
