package image

// String is where the image comes from, as anybody may read it: the URL without
// its query, which may be what gives access.
func (s Source) String() string {
	u, err := parseURL(s.URL)
	if err != nil {
		return "an image whose URL cannot be read"
	}
	return shown(u)
}
