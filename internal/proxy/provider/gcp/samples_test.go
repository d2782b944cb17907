package gcp_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/testkit/gcefake"
)

// The image of the samples and of the page is one that has cloud-init: Google's
// own Debian images are made without, and user-data are ignored there.
func TestImagesOfTheSamplesHaveCloudInit(t *testing.T) {
	form := regexp.MustCompile(`projects/[a-z-]+/global/images/family/[a-z0-9-]+`)
	for _, path := range []string{"config/samples/providers_gcp.yaml", "config/samples/proxy_gcp.yaml", "docs/gcp-provider.md"} {
		text, err := os.ReadFile("../../../../" + path)
		if err != nil {
			t.Fatal(err)
		}
		images := form.FindAllString(string(text), -1)
		if len(images) == 0 && strings.Contains(path, "provider") {
			t.Errorf("%s names no image", path)
		}
		for _, image := range images {
			if !strings.HasPrefix(image, "projects/ubuntu-os-cloud/") {
				t.Errorf("%s names %s: does it have cloud-init?", path, image)
			}
			w := newWorld(t, false, gcefake.Options{})
			w.section.Images = map[string]string{"it": image}
			if in := up(t, w.open(t), specOf("sample", w.Zones()[0])); in.State != provider.Running {
				t.Errorf("%s: %+v", image, in)
			}
		}
	}
}
