package gcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	compute "google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"

	"fleetdesk/internal/core/fault"
)

// Codes of operations' errors and reasons of HTTP errors, as Compute Engine
// spells them.
const (
	reasonRate     = "rateLimitExceeded"
	reasonUserRate = "userRateLimitExceeded"
	reasonQuota    = "quotaExceeded"
	reasonDisabled = "accessNotConfigured"
	reasonBilling  = "accountDisabled"
	reasonPolicy   = "policy"
	reasonNotReady = "resourceNotReady"
	reasonInUse    = "resourceInUseByAnotherResource"

	codeExhausted = "RESOURCE_POOL_EXHAUSTED"
	codeQuota     = "QUOTA_EXCEEDED"
	codeExists    = "RESOURCE_ALREADY_EXISTS"
	codeMissing   = "RESOURCE_NOT_FOUND"
	codeNotReady  = "RESOURCE_NOT_READY"
	codeInUse     = "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"
	codeRate      = "RATE_LIMIT_EXCEEDED"
	codeRates     = "RATE_EXCEEDED" // RESOURCE_OPERATION_RATE_EXCEEDED and its like
	codeAddresses = "IP_SPACE_EXHAUSTED"
	codeInternal  = "INTERNAL_ERROR"
)

// reasonOf is an HTTP error's own word for it.
func reasonOf(err error) (*googleapi.Error, string) {
	e, ok := errors.AsType[*googleapi.Error](err)
	if !ok {
		return nil, ""
	}
	for _, item := range e.Errors {
		if item.Reason != "" {
			return e, item.Reason
		}
	}
	return e, ""
}

// limited reports whether a call was refused only because of too many calls.
func limited(err error) bool {
	e, reason := reasonOf(err)
	return e != nil && (e.Code == http.StatusTooManyRequests || e.Code == http.StatusForbidden && (reason == reasonRate || reason == reasonUserRate))
}

// classed gives what a call failed with its class, and says what a person can
// do. The text has the API's own words, on one line and bounded.
func classed(ctx context.Context, project string, err error) error {
	if err == nil {
		return nil
	}
	if e, _ := reasonOf(err); e != nil {
		return &quoting{explained(ctx, project, err), e.Message}
	}
	return explained(ctx, project, err)
}

func explained(ctx context.Context, project string, err error) error {
	e, reason := reasonOf(err)
	if e == nil {
		// First, since what is inside may be an error of the network too: of the
		// token endpoint, or of the metadata server.
		if u, ok := errors.AsType[*unusable](err); ok {
			return fault.Wrap(fault.Of(u), u)
		}
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // the rest is the call's own address
		}
		switch {
		case fault.Classed(err):
			return err
		case errors.Is(err, context.DeadlineExceeded):
			return fault.Errorf(fault.Timeout, "no answer of the Compute Engine API in time: %w", err)
		case ctx.Err() != nil:
			return fault.Wrap(fault.Transient, err)
		}
		return fault.Errorf(fault.Unavailable, "the Compute Engine API cannot be reached: %w", err)
	}
	said := words(e.Message)
	switch {
	case e.Code >= 300 && e.Code < 400:
		return &apiError{fault.Unavailable, reason, fmt.Sprintf("the Compute Engine API's address redirects elsewhere (status %d), which is not followed: look at gcp.endpoint, and what is between", e.Code)}
	case limited(err):
		return fault.Errorf(fault.Transient, "too many calls to the Compute Engine API for the project's rate: %s: lower gcp.requestsPerSecond, or ask for a higher limit", said)
	case e.Code == http.StatusUnauthorized:
		return fault.Wrap(fault.Permanent, &unusable{fmt.Errorf("the API refuses them: %s: renew them", said)})
	case busyResource(reason, e.Message):
		return &apiError{fault.Transient, reason, "too many changes of one resource at once: " + said}
	case e.Code == http.StatusForbidden && reason == reasonQuota:
		return &apiError{fault.Quota, reason, fmt.Sprintf("a quota of project %s is used up: %s: delete machines, or ask for a higher quota", project, said)}
	case e.Code == http.StatusForbidden && (reason == reasonBilling || strings.Contains(e.Message, "requires billing")):
		return &apiError{fault.Permanent, reasonBilling, fmt.Sprintf("project %s has no billing: %s: link a billing account to it, or pay what is due", project, said)}
	case e.Code < 500 && strings.Contains(e.Message, "constraints/"):
		return &apiError{fault.Permanent, reasonPolicy, fmt.Sprintf("a policy of the organisation forbids this: %s: whoever administers the organisation can allow it, or change what is asked for", said)}
	case e.Code == http.StatusForbidden && (reason == reasonDisabled || strings.Contains(e.Message, "SERVICE_DISABLED")):
		return &apiError{fault.Permanent, reasonDisabled, fmt.Sprintf("the Compute Engine API is not enabled in project %s: gcloud services enable compute.googleapis.com --project %s", project, project)}
	case e.Code == http.StatusForbidden:
		return &apiError{fault.Permanent, "forbidden", fmt.Sprintf("the operator's service account may not do this: %s: grant the permissions of docs/gcp-provider.md", said)}
	case e.Code == http.StatusNotFound, e.Code == http.StatusGone:
		return &apiError{fault.NotFound, reason, said}
	case strings.Contains(e.Message, "Unknown zone"):
		return &apiError{fault.Permanent, reason, said + ": check gcp.zones"}
	case reason == reasonInUse, e.Code == http.StatusConflict:
		return &apiError{fault.Conflict, reason, said}
	case reason == reasonNotReady:
		return &apiError{fault.Transient, reason, said}
	case exhaustion(e.Message):
		return &apiError{fault.Quota, codeExhausted, said}
	case e.Code >= 500, e.Code == http.StatusRequestTimeout:
		return &apiError{fault.Unavailable, reason, fmt.Sprintf("the Compute Engine API cannot answer now (status %d): %s", e.Code, said)}
	}
	return &apiError{fault.Permanent, reason, said}
}

// busyResource reports whether one resource, such as an image, has too many
// operations at once. It is refused with 403, and nothing is forbidden.
func busyResource(reason, text string) bool {
	return strings.EqualFold(reason, "resourceOperationRateExceeded") || strings.Contains(text, "RESOURCE_OPERATION_"+codeRates) || strings.HasPrefix(text, "Operation rate exceeded")
}

func isUnusable(err error) bool {
	_, ok := errors.AsType[*unusable](err)
	return ok
}

// apiError is an error of the API with its own word for it.
type apiError struct {
	class  fault.Class
	reason string
	text   string
}

func (e *apiError) Error() string { return e.text }

// Unwrap gives the class.
func (e *apiError) Unwrap() error { return e.class }

// failed is the error inside an operation that ended; nil for none.
func failed(op *compute.Operation) error {
	if op.Error == nil || len(op.Error.Errors) == 0 {
		if op.HttpErrorStatusCode >= 400 {
			return &quoting{&apiError{fault.Transient, "", fmt.Sprintf("the operation failed with status %d: %s", op.HttpErrorStatusCode, words(op.HttpErrorMessage))}, op.HttpErrorMessage}
		}
		return nil
	}
	e := op.Error.Errors[0]
	text := fmt.Sprintf("%s: %s", line(e.Code), words(e.Message))
	class := fault.Permanent
	switch {
	case e.Code == codeRate, strings.Contains(e.Code, codeRates):
		class = fault.Transient
	case exhaustion(e.Code), strings.HasPrefix(e.Code, codeQuota), strings.HasPrefix(e.Code, codeAddresses):
		class = fault.Quota
	case e.Code == codeExists:
		class = fault.Conflict
	case e.Code == codeMissing:
		class = fault.NotFound
	case e.Code == codeNotReady, e.Code == codeInUse, e.Code == codeInternal:
		class = fault.Transient
	case op.HttpErrorStatusCode == http.StatusNotFound:
		class = fault.NotFound
	// Of a code that is not known the status tells. 409 is another change that
	// came in between, such as a removal while it was made: nobody else's thing.
	case op.HttpErrorStatusCode == http.StatusConflict, op.HttpErrorStatusCode == http.StatusRequestTimeout,
		op.HttpErrorStatusCode == http.StatusTooManyRequests, op.HttpErrorStatusCode >= 500:
		class = fault.Transient
	}
	return &quoting{&apiError{class, e.Code, text}, e.Message}
}

// codeOf is the API's own word for an error, "" for none.
func codeOf(err error) string {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e.reason
	}
	return ""
}

// isExhausted reports whether the zone has no machine of that kind now.
func isExhausted(err error) bool { return exhaustion(codeOf(err)) }

// exhaustion reports whether a code says so. It comes with and without details,
// for a zone and for a region.
func exhaustion(code string) bool {
	return strings.Contains(code, codeExhausted) || strings.Contains(code, "STOCKOUT")
}

// words is what the API said, without what it quotes of metadata: user-data are
// a secret, and the API repeats what it does not like.
func words(s string) string {
	if strings.Contains(s, "metadata") {
		return "the API does not take the metadata (its words are not shown, since they may quote user-data)"
	}
	return line(s)
}

// named gives an error the zone's name and a class.
func (p *Provider) named(ctx context.Context, zone string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && !fault.Classed(err) {
		class := fault.Transient
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			class = fault.Timeout
		}
		err = fault.Wrap(class, err)
	}
	if strings.HasPrefix(err.Error(), "zone "+zone) {
		return err
	}
	return fmt.Errorf("zone %s: %w", zone, err)
}
