package arch_test

// table is the law: floors, and what is allowed beyond them. Folders are
// written as "a/b" (that package alone) or "a/b/..." (it and all below).
type table struct {
	floors    []floor
	importers []importers
	closures  []closure
	doors     []door
	// names that say nothing about what a package holds.
	names []string
	// mains are the folders of programs' mains, and their lines at most.
	mains     []string
	mainLines int
	// fileLines is the length of a file at most; long excuses single files.
	fileLines int
	long      []exception
	// chart is the document with a row for each folder of the system.
	chart string
}

// floor says what the production files of a folder may import, and what its
// tests (and packages that only tests import) may import besides. The longest
// folder that fits a package decides. In may and tests, a name with a dot in
// its first element is a third party's, any other the project's own.
type floor struct {
	folder string
	may    []string
	tests  []string
	reason string
}

// std and third stand for the standard library and for every third party.
const (
	std   = "std"
	third = "third"
)

// importers says who alone may import a folder.
type importers struct {
	folder, reason string
	by             []string
}

// closure says what the programs made from a folder must never hold, through
// however many steps.
type closure struct {
	from   []string
	never  []string
	but    []string
	reason string
}

// door says which folders alone may use a way out: imports, or functions
// ("os.Exit") of a package.
type door struct {
	imports []string
	uses    []string
	in      []string
	reason  string
}

type exception struct{ file, reason string }

const (
	contract = "internal/proxy/provider"
	qasight  = "internal/qasight"
	core     = "internal/core/..."
	platform = "internal/platform/..."
	testkit  = "internal/testkit/..."
	k8s      = "k8s.io/..."
	sigs     = "sigs.k8s.io/..."
)

// notProviders are the folders beside the providers that hold none.
var notProviders = []string{contract, contract + "/guard", contract + "/providertest"}

var rules = table{
	floors: []floor{
		{
			folder: "api/...", may: []string{std, "k8s.io/apimachinery/..."},
			tests:  []string{third, testkit, "api/...", "config/..."},
			reason: "other people's Go programs import the types, and take over whatever they import",
		},
		{
			folder: "client/...", may: []string{std},
			tests:  []string{third, "client/..."},
			reason: "a crawler takes the client into its own program: nothing may come along",
		},
		{
			folder: "config/...", may: []string{std},
			tests:  []string{third, testkit, "api/...", "config/...", "internal/proxy/config"},
			reason: "generated manifests as data; what installs them is elsewhere",
		},
		{
			folder: "cmd/...", may: []string{std, "golang.org/x/term/...", "internal/proxy/operator", "internal/qasight/cli"},
			reason: "a main catches signals, sees whether it writes to a terminal, and calls its composition root",
		},
		{
			folder: core, may: []string{std, core},
			tests:  []string{third},
			reason: "rules without I/O are tested without a machine, and both products share them",
		},
		{
			folder: "internal/core/target", may: []string{std, core, "golang.org/x/net/..."},
			tests:  []string{third},
			reason: "names of sites: the tables of IDNA and of public suffixes are kept by others",
		},
		{
			folder: platform, may: []string{std, third, core, platform},
			tests:  []string{testkit},
			reason: "adapters to the machine know no product, so that both products can use them",
		},
		{
			folder: "internal/desk/...", may: []string{std, third, core, platform, "internal/desk/...", "client/..."},
			tests:  []string{testkit},
			reason: "what both products share knows neither; the wire types are the client's, so that they exist once",
		},
		{
			folder: "internal/proxy/...",
			may:    []string{std, third, core, platform, "internal/desk/...", "api/...", "client/...", "internal/proxy/..."},
			tests:  []string{testkit, "config/..."},
			reason: "a product stands on the desk, the platform and the rules, and never on the other product",
		},
		{
			folder: qasight + "/...",
			may:    []string{std, third, core, platform, "internal/desk/...", "client/...", qasight + "/..."},
			tests:  []string{testkit},
			reason: "a product stands on the desk, the platform and the rules, and never on the other product",
		},
		{
			folder: qasight + "/pool", may: []string{std, core, "client/..."},
			tests:  []string{third},
			reason: "what leaves the owner's machine is made of this: it knows neither the file nor a provider",
		},
		{
			folder: qasight + "/config", may: []string{std, core, qasight + "/pool", "github.com/goccy/go-yaml/..."},
			tests:  []string{third},
			reason: "the file as data: reading it starts nothing",
		},
		{
			folder: contract, may: []string{std, core},
			tests:  []string{third},
			reason: "whoever writes a provider takes over what the contract imports",
		},
		{
			folder: contract + "/...", may: []string{std, core, platform, contract},
			tests:  []string{third, testkit, contract + "/providertest"},
			reason: "a provider runs without a cluster and knows no sibling; its SDK is named in a row of its own",
		},
		{
			folder: contract + "/providertest", may: []string{std, core, contract, contract + "/fake"},
			tests:  []string{third},
			reason: "authors of providers use the suite; it is proven on broken variants of the fake",
		},
		{
			folder: contract + "/guard", may: []string{std, core, platform, contract, "github.com/prometheus/client_golang/..."},
			tests:  []string{third, contract + "/..."},
			reason: "decorators wrap any provider and so know none",
		},
		{
			folder: contract + "/local/...",
			may: []string{
				std, core, platform, contract, contract + "/local/...",
				"github.com/elazarl/goproxy/...", "golang.org/x/sys/...", "golang.org/x/sync/...",
			},
			tests:  []string{third, testkit, contract + "/providertest"},
			reason: "its SDK is a proxy library and the kernel",
		},
		{
			folder: contract + "/kvm/...",
			may: []string{
				std, core, platform, contract, contract + "/kvm/...",
				"github.com/digitalocean/go-libvirt/...", "golang.org/x/crypto/ssh/...", "github.com/kdomanski/iso9660/...",
				"golang.org/x/sys/...", "golang.org/x/sync/...",
			},
			tests:  []string{third, testkit, contract + "/providertest", contract + "/guard"},
			reason: "its SDK is libvirt's wire, SSH, and a writer of ISO images; the doors below say where each is",
		},
		{
			folder: contract + "/gcp/...",
			may: []string{
				std, core, platform, contract, contract + "/gcp/...",
				"google.golang.org/api/...", "golang.org/x/oauth2/...", "golang.org/x/sync/...", "golang.org/x/time/...",
			},
			tests:  []string{third, testkit, contract + "/providertest", contract + "/guard"},
			reason: "its SDK is Google's client of Compute Engine and its credentials",
		},
		{
			folder: contract + "/kubernetes/...",
			may: []string{
				std, core, platform, contract, contract + "/kubernetes/...",
				"k8s.io/api/...", "k8s.io/apimachinery/...", "k8s.io/client-go/...", "golang.org/x/crypto/bcrypt",
			},
			tests:  []string{third, testkit, contract + "/providertest", contract + "/guard"},
			reason: "its SDK is client-go and the API's types, and the hash that squid checks passwords by",
		},
		{
			folder: contract + "/builtin", may: []string{std, core, platform, contract + "/...", "internal/proxy/config", "internal/proxy/registry"},
			tests:  []string{third, "config/..."},
			reason: "the one place that lists all providers",
		},
		{
			folder: testkit, may: []string{std, third, core, platform, testkit, "api/...", "config/..."},
			reason: "helpers of tests stand on the same floors as what they help to test",
		},
		{
			folder: "standalone/...",
			may:    []string{std, third, core, platform, "internal/proxy/operator", "api/...", "client/...", "config/...", "standalone/..."},
			tests:  []string{testkit},
			reason: "the operator with an API server around it: it calls the composition root and nothing behind it",
		},
		{
			folder: "hack/...", may: []string{std, third, "api/...", "client/..."},
			reason: "tools of the house see the system from outside",
		},
		{
			folder: "test/...", may: []string{std},
			tests:  []string{third, testkit, "api/...", "client/...", "config/...", core},
			reason: "the programs are tested from outside, as processes",
		},
		{
			folder: "test/fleet", may: []string{std},
			tests:  []string{third, testkit, "api/...", "config/...", core, platform, "internal/proxy/..."},
			reason: "the operator is killed at each of its effects: its drill runs it whole, with faults where it meets the world",
		},
		{
			folder: "test/leases", may: []string{std},
			tests:  []string{third, testkit, "client/...", core, platform, "internal/desk/..."},
			reason: "both programs stand on the desk; its drill and benches run the desk alone, as processes of the test binary",
		},
		{
			folder: "test/selection", may: []string{std},
			tests:  []string{third, testkit, "client/...", core, platform, "internal/desk/..."},
			reason: "the bench of choosing asks the engine itself",
		},
		{
			folder: "test/crawlers", may: []string{std},
			tests:  []string{third, testkit, "client/...", core, platform, "internal/desk/..."},
			reason: "the page's programs are run against the desk itself, with proxies put there by hand",
		},
		{
			folder: "test/waterfall", may: []string{std},
			tests:  []string{third, testkit, core, platform, "internal/desk/..."},
			reason: "the simulator asks the engine itself, by a clock of its own",
		},
	},

	importers: []importers{
		{
			folder: contract + "/builtin", by: []string{"internal/proxy/operator"},
			reason: "the list of providers enters the program in one place",
		},
		{
			folder: contract + "/local/...", by: []string{contract + "/builtin", contract + "/local/...", "internal/proxy/operator"},
			reason: "a provider is known to the list of providers alone; local is also a subcommand of the program, since its instances are processes of it",
		},
		{
			folder: contract + "/gcp/...", by: []string{contract + "/builtin", contract + "/gcp/..."},
			reason: "a provider is known to the list of providers alone",
		},
		{
			folder: contract + "/kvm/...", by: []string{contract + "/builtin", contract + "/kvm/..."},
			reason: "a provider is known to the list of providers alone",
		},
		{
			folder: contract + "/kubernetes/...", by: []string{contract + "/builtin", contract + "/kubernetes/..."},
			reason: "a provider is known to the list of providers alone",
		},
		{
			folder: qasight + "/humanrun", by: []string{qasight + "/cli/poolcmd"},
			reason: "a provider's commands are run by what a person types under \"qasight pool\", and by nothing else",
		},
		{
			folder: qasight + "/cli", by: []string{"cmd/..."},
			reason: "a composition root that others import is no root",
		},
		{
			folder: "internal/proxy/operator", by: []string{"cmd/...", "standalone/..."},
			reason: "a composition root that others import is no root",
		},
	},

	closures: []closure{
		{
			from:  []string{"internal/proxy/controller/...", "internal/proxy/inventory", "internal/proxy/probe", "internal/proxy/registry"},
			never: []string{contract + "/..."}, but: notProviders,
			reason: "what decides sees the contract and never an implementation",
		},
		{
			from: []string{core, platform, "internal/desk/...", "client/...", qasight + "/...", "cmd/qasight"}, never: []string{k8s, sigs},
			reason: "qasight has no Kubernetes, and what both products share must not bring it along",
		},
		{
			from: []string{
				"internal/desk/...", qasight + "/pool", qasight + "/hooks", qasight + "/broker",
				qasight + "/cli/command", qasight + "/cli/leasecmd", qasight + "/cli/stagecmd", qasight + "/cli/servecmd", qasight + "/cli/filecmd",
			},
			never:  []string{qasight + "/humanrun"},
			reason: "nothing but a typed \"qasight pool\" command can run a provider's command, however far away it is",
		},
		{
			from: []string{"internal/desk/...", qasight + "/pool", qasight + "/hooks", qasight + "/broker"}, never: []string{qasight + "/config"},
			reason: "what speaks to a server, and what works on keys, has never seen the file: it cannot send a provider's command by mistake",
		},
		{
			from: []string{"cmd/..."}, never: []string{"k8s.io/kubernetes/...", "k8s.io/apiserver/...", "go.etcd.io/..."},
			reason: "the operator in a cluster does not carry an API server",
		},
		{
			from: []string{"cmd/..."}, never: []string{"testing"},
			reason: "test code in a program is attack surface and flags that nobody asked for",
		},
	},

	doors: []door{
		{
			imports: []string{"os/exec"}, in: []string{"internal/platform/proc", contract + "/local/...", "hack/...", "internal/testkit/postgres", "internal/testkit/libvirthost", "internal/testkit/gcefake", "internal/testkit/kubelet"},
			reason: "every command that the system starts can be found; hack/ and the test kits are in no program",
		},
		{
			imports: []string{"modernc.org/sqlite/...", "github.com/pressly/goose/..."}, in: []string{"internal/platform/sqldb/..."},
			reason: "SQL dialects differ; one place knows them",
		},
		{
			imports: []string{"github.com/jackc/pgx/..."}, in: []string{"internal/platform/sqldb/...", "internal/testkit/postgres"},
			reason: "as for SQLite; the test kit makes databases on its servers",
		},
		{
			imports: []string{"github.com/spf13/cobra/..."}, in: []string{"internal/proxy/operator", qasight + "/cli/..."},
			reason: "flags are read at the composition root and passed on as values",
		},
		{
			imports: []string{"github.com/elazarl/goproxy/..."}, in: []string{contract + "/local/..."},
			reason: "one door per SDK",
		},
		{
			imports: []string{"github.com/digitalocean/go-libvirt/..."}, in: []string{contract + "/kvm/rpc"},
			reason: "the library trusts its peer: nobody may use it without the guard that is there",
		},
		{
			imports: []string{"google.golang.org/api/...", "golang.org/x/oauth2/..."}, in: []string{contract + "/gcp", "internal/testkit/gcefake"},
			reason: "one door per SDK; the test kit is the other end, made of the same structs",
		},
		{
			imports: []string{"golang.org/x/crypto/ssh/..."}, in: []string{contract + "/kvm/sshdial", "internal/testkit/sshd"},
			reason: "one place verifies hosts' keys and handles users' keys; the test kit is the other end",
		},
		{
			imports: []string{"github.com/kdomanski/iso9660/..."}, in: []string{contract + "/kvm/seed", "hack/kvm/tinyguest"},
			reason: "one door per SDK",
		},
		{
			imports: []string{"golang.org/x/crypto/bcrypt"}, in: []string{contract + "/kubernetes/...", "internal/testkit/kubelet"},
			reason: "our own tokens are hashed otherwise; this is what squid's helper reads, and the test kit plays squid",
		},
		{
			imports: []string{"k8s.io/client-go/kubernetes", "k8s.io/client-go/metadata"},
			in:      []string{contract + "/kubernetes/...", testkit, "standalone/controlplane/..."},
			reason:  "the operator speaks to its own cluster by controller-runtime; whoever else makes a clientset speaks to another one",
		},
		{
			imports: []string{"github.com/danielgtaylor/huma/..."}, in: []string{"internal/desk/api"},
			reason: "one door per SDK: the rest of the desk does not know how routes are made",
		},
		{
			imports: []string{"k8s.io/kubernetes/...", "k8s.io/apiserver/...", "go.etcd.io/..."}, in: []string{"standalone/controlplane/..."},
			reason: "one door to the insides of Kubernetes, which promise nothing between versions",
		},
		{
			imports: []string{"os/signal"}, in: []string{"cmd/...", "standalone/cmd/...", "hack/...", "internal/platform/proc", "internal/testkit/libvirthost"},
			reason: "one signal handler per process, caught before anything starts; a supervisor, whose whole process is proc's, outlives the signals of its terminal, and a cell hands them on to the tests inside",
		},
		{
			uses: []string{"os.Exit", "log.Fatal", "log.Fatalf", "log.Fatalln"}, in: []string{"cmd/...", "standalone/cmd/...", "hack/..."},
			reason: "an exit from below skips every cleanup",
		},
		{
			uses: []string{"os.Getenv", "os.LookupEnv", "os.Environ", "os.ExpandEnv"}, in: []string{"cmd/...", "standalone/cmd/...", "hack/..."},
			reason: "the environment is an argument of main; what reads it elsewhere cannot be tested side by side",
		},
	},

	names: []string{"util", "utils", "common", "helper", "helpers", "types", "models", "misc"},

	mains: []string{"cmd/...", "standalone/cmd/..."}, mainLines: 40,
	fileLines: 500,
	chart:     "docs/architecture.md",
}
