/** The page of the documentation for each page of the console, below `/docs/`. */

/** By the beginning of the address; the longest that fits counts. */
export const HELP: Readonly<Record<string, string>> = {
  '': 'console',
  resources: 'guides/search',
  bots: 'bots',
  jobs: 'guides/bulk-data',
  subscriptions: 'guides/automation',
  agents: 'guides/agents',
  'dead-letters': 'guides/automation',
  schedules: 'guides/automation',
  runs: 'bots',
  graphiql: 'guides/graphql',
  api: 'guides/api',
  members: 'guides/administration',
  'members/new-client': 'guides/sign-in',
  policies: 'guides/access-policies',
  project: 'projects',
  'project/mail': 'guides/administration',
  'project/parameters': 'guides/search',
  'project/limits': 'reference/limits',
  profile: 'guides/sign-in',
  service: 'operations',
  'service/metrics': 'reference/metrics',
}

/** Returns the address of the page that explains a page of the console, `/docs/` for an unlisted one. */
export function helpAddress(location: string): string {
  const steps = location.split('/').slice(1)
  for (let length = steps.length; length > 0; length--) {
    const page = HELP[steps.slice(0, length).join('/')]
    if (page !== undefined) return `/docs/${page}`
  }
  return '/docs/'
}
