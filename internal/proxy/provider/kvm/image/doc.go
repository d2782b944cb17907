// Package image has the sources of disk images: what a source may be, how its
// bytes are fetched and judged while they pass, and what the volumes are called
// that hold them.
//
// Nothing here is kept on this machine, and nothing talks to a host: [Fetcher]
// gives a [Stream] that whoever uploads it reads once. A stream that ended well
// is whole and is what was promised; anything else is an error with a class of
// core/fault. No error shows a URL's query or userinfo, since signed URLs are
// secrets.
//
// A volume of an image is complete only when its marker is there: [VolumeName]
// and [MarkerName] make the names, [Find] reads them.
package image
