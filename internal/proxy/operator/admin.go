package operator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/desk/token"
	"fleetdesk/internal/platform/sqldb"
)

// firstAdmin sees to it that somebody can use the client API: it delivers the
// first admin token to a file or a Secret, and reports whether it made it now.
func (d *desk) firstAdmin(ctx context.Context, mgr manager.Manager, o Options) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	delivery := token.FileDelivery(o.adminTokenFile())
	if o.AdminTokenSecret != "" {
		delivery = secretDelivery{
			read: mgr.GetAPIReader(), write: mgr.GetClient(),
			name: types.NamespacedName{Namespace: o.Namespace, Name: o.AdminTokenSecret},
		}
	}
	created, err := d.tokens.EnsureFirstAdmin(ctx, delivery)
	if err != nil {
		return false, fmt.Errorf("the first admin token: %w", err)
	}
	if !created && o.AdminTokenSecret == "" && missing(o.adminTokenFile()) {
		o.Log.Warn("the file of the first admin token is gone, and tokens are kept as hashes only: the subcommand "+adminTokenCommand+" makes another one", "file", o.adminTokenFile())
	}
	return created, nil
}

func missing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// adminTokenCommand is the subcommand that makes another admin token.
const adminTokenCommand = "admin-token"

// anotherAdminToken issues a token of the first admin account into a new file.
// It works on the database of a running operator as well.
func anotherAdminToken(ctx context.Context, o Options) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	place, file := o.database(), o.adminTokenFile()
	if place.Path != "" && missing(place.Path) {
		return fault.Errorf(fault.Invalid, "there is no database %s: name the folder or the file that the operator uses", place.Path)
	}
	if !missing(file) {
		return fault.Errorf(fault.Conflict, "%s is there already: move it away, or name another file with --file", file)
	}
	db, err := sqldb.Open(ctx, place)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // what was written is written
	secret, record, err := token.New(token.Options{Store: db.Tokens()}).Issue(ctx, token.FirstAdmin, time.Time{})
	if err != nil {
		return err
	}
	if err := token.FileDelivery(file).Save(ctx, secret); err != nil {
		return fmt.Errorf("the new token %s opens nothing, since its file cannot be written: %w", record.ID, err)
	}
	return nil
}

// adminTokenKey is the Secret's key that holds the token.
const adminTokenKey = "token"

// secretDelivery leaves the first admin token in a Secret.
type secretDelivery struct {
	read  client.Reader
	write client.Writer
	name  types.NamespacedName
}

// Load implements token.Delivery.
func (s secretDelivery) Load(ctx context.Context) (token.Secret, bool, error) {
	found := &corev1.Secret{}
	err := s.read.Get(ctx, s.name, found)
	switch {
	case apierrors.IsNotFound(err):
		return token.Secret{}, false, nil
	case err != nil:
		return token.Secret{}, false, fault.Errorf(apiClass(err), "Secret %s cannot be read: %w", s.name, err)
	}
	text, ok := found.Data[adminTokenKey]
	if !ok {
		return token.Secret{}, false, fault.Errorf(fault.Conflict,
			"Secret %s is there without the key %q: it is somebody else's; name another one with --admin-token-secret", s.name, adminTokenKey)
	}
	return token.NewSecret(strings.TrimSpace(string(text))), true, nil
}

// Save implements token.Delivery. Create never replaces.
func (s secretDelivery) Save(ctx context.Context, t token.Secret) error {
	err := s.write.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name.Namespace, Name: s.name.Name},
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{adminTokenKey: []byte(t.Reveal())},
	})
	if err != nil {
		return fault.Errorf(apiClass(err), "Secret %s cannot be made: %w", s.name, err)
	}
	return nil
}

// apiClass is the class of an error of the Kubernetes API.
func apiClass(err error) fault.Class {
	switch {
	case apierrors.IsNotFound(err):
		return fault.NotFound
	case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err):
		return fault.Conflict
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return fault.Denied
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return fault.Invalid
	}
	return fault.Unavailable
}
