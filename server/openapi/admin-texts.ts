/** The words of `/admin/**`, by method and path. */
import type { CallText } from './call-text.ts'

const MEMBER_ID = 'Errors: 404 for a member of another Project.'
const ASYNC =
  'Answered 202; `Content-Location` is the address of an AsyncJob. Takes `Prefer: respond-async`.'
const NOTHING = `Another database would need this; here the job is complete at once. ${ASYNC}`
const FOREIGN = 'A call of another database. It is always refused as not supported.'

export const adminTexts: Readonly<Record<string, CallText>> = {
  'POST /admin/Project': {
    summary: 'Make a project',
    description:
      'For super admins. The new project is strict, and has the features of DEFAULT_PROJECT_FEATURES.',
    body: 'Project',
    example: { resourceType: 'Project', name: 'Clinic' },
    answer: 'Project',
    status: 201,
  },
  'GET /admin/projects/{id}': {
    summary: 'Read a project',
    description: 'With its secrets and settings, for its administrators.',
    answer: {
      project: 'object: id, name, secret, site, setting, systemSetting and features',
      load: 'object: Load units of this minute, where there is a quota: memberLimit, limit, used',
    },
  },
  'POST /admin/projects/{id}/client': {
    summary: 'Make a client',
    description: 'The account of a program, with its membership. The secret is in the answer.',
    body: {
      name: 'text!: What people call it',
      description: 'text: What it is for',
      redirectUris: 'list: Addresses that a code may be sent to',
      accessPolicy: 'object: Reference of an AccessPolicy; without one it may use all types',
      accessTokenLifetime: 'text: 30m, for example',
      refreshTokenLifetime: 'text: 2w, for example',
    },
    example: { name: 'Laboratory' },
    answer: 'ClientApplication',
    status: 201,
  },
  'POST /admin/projects/{id}/bot': {
    summary: 'Make a bot',
    description: 'With its membership and a template as its source. Code comes by `$deploy`.',
    body: {
      name: 'text!: What people call it',
      description: 'text: What it is for',
      timeout: 'whole: Seconds of a run',
      cronString: 'text: When it runs by itself',
      accessPolicy: 'object: Reference of an AccessPolicy',
    },
    example: { name: 'admit' },
    answer: 'Bot',
    status: 201,
  },
  'GET /admin/projects/{id}/bots/stats': {
    summary: 'See how busy bots are',
    description: 'What runs, what waits and why, over all workers.',
    answer: 'object',
  },
  'GET /admin/projects/{id}/schedules': {
    summary: 'See when bots run by themselves',
    description: 'The next and the last run of each bot that has a schedule.',
    answer: { schedules: 'list: bot, cron, zone, next, last, lastStatus and isRunning' },
  },
  'GET /admin/projects/{id}/storage': {
    summary: 'See how much is stored',
    description:
      'Versions of records and their bytes, without indexes and contents of Binaries. Above 10,000 versions both are estimates.',
    answer: { versions: 'whole: With the history', bytes: 'whole: Bytes', isEstimate: 'flag' },
  },
  'GET /admin/projects/{id}/subscriptions': {
    summary: 'See how deliveries go',
    description:
      'An item for each Subscription that has delivered anything, those in trouble first.',
    answer: {
      subscriptions:
        'list: subscription, delivered, failed, waiting, failures in a row, failingSince, paused, error',
    },
  },
  'GET /admin/projects/{id}/subscriptions/{subscription}': {
    summary: 'Read what a Subscription has not delivered',
    description: 'What waits and what has failed in the last week, the newest first, 200 at most.',
    answer: {
      deliveries:
        'list: resource, version, interaction, target, state, attempts, added, due, error',
    },
  },
  'POST /admin/projects/{id}/invite': {
    summary: 'Invite a person or program',
    description: 'Makes the user, profile and membership, and mails a link to set a password.',
    body: {
      resourceType: 'text!: Patient, Practitioner or RelatedPerson',
      firstName: 'text!: Given name',
      lastName: 'text!: Family name',
      email: 'text: Without it, externalId is needed',
      externalId: 'text: The id at an identity provider',
      sendEmail: 'flag: True unless said otherwise',
      admin: 'flag: The member is an administrator of the project',
      accessPolicy: 'object: Reference of an AccessPolicy',
      password: 'text: Sets a password instead of a link; of persons of the project',
      membership: 'object: Further elements of the ProjectMembership',
      mfaRequired: 'flag: A second factor is a must',
      upsert: 'flag: An existing membership is changed instead of refused',
    },
    example: {
      resourceType: 'Practitioner',
      firstName: 'Grace',
      lastName: 'Hopper',
      email: 'grace@example.org',
    },
    answer: 'ProjectMembership',
  },
  'GET /admin/projects/{id}/members': { summary: 'List members', answer: 'Bundle' },
  'GET /admin/projects/{id}/members/{member}': {
    summary: 'Read a member',
    description: MEMBER_ID,
    answer: 'ProjectMembership',
  },
  'POST /admin/projects/{id}/members/{member}': {
    summary: 'Replace a member',
    description: `Sets \`admin\`, \`accessPolicy\`, \`access\` and the like. ${MEMBER_ID}`,
    body: 'ProjectMembership',
    answer: 'ProjectMembership',
  },
  'PUT /admin/projects/{id}/members/{member}': {
    summary: 'Replace a member, as POST does',
    description: MEMBER_ID,
    body: 'ProjectMembership',
    answer: 'ProjectMembership',
  },
  'PATCH /admin/projects/{id}/members/{member}': {
    summary: 'Change a member',
    description: `JSON Patch. ${MEMBER_ID}`,
    body: 'JsonPatch',
    example: [{ op: 'add', path: '/admin', value: true }],
    answer: 'ProjectMembership',
  },
  'DELETE /admin/projects/{id}/members/{member}': {
    summary: 'Remove a member',
    description: `The person or program can no longer sign in to the project. ${MEMBER_ID}`,
    answer: 'OperationOutcome',
  },
  'POST /admin/projects/{id}/secrets': {
    summary: 'Replace the secrets of bots',
    description: 'All of them; bots find them in `event.secrets`.',
    body: 'Settings',
    example: [{ name: 'PARTNER_KEY', valueString: 'a key' }],
    answer: 'Project',
  },
  'POST /admin/projects/{id}/settings': {
    summary: 'Replace the settings of a project',
    description: 'All of them; docs/projects.md lists what they mean.',
    body: 'Settings',
    example: [{ name: 'BOT_INPUT_ARCHIVE', valueBoolean: true }],
    answer: 'Project',
  },
  'POST /admin/projects/{id}/sites': {
    summary: 'Replace the sites of a project',
    description: 'Each has a name, a list of domains, and Google and reCAPTCHA keys of its own.',
    body: 'Settings',
    example: [{ name: 'Portal', domain: ['portal.example.org'] }],
    answer: 'Project',
  },
  'POST /admin/projects/setpassword': {
    summary: 'Set the password of a person of the project',
    description: 'Their sessions end.',
    body: {
      email: 'text!: Who',
      password: 'text!: The new password',
      projectId: 'text: For super admins',
    },
    answer: 'OperationOutcome',
  },
  'POST /admin/super/setpassword': {
    summary: 'Set the password of anybody',
    body: {
      email: 'text!: Who',
      password: 'text!: The new password',
      projectId: 'text: Of a person of a project',
    },
    answer: 'OperationOutcome',
  },
  'POST /admin/super/purge': {
    summary: 'Forget old AuditEvents or Logins',
    description: 'Rows older than `before` are gone with their history.',
    body: { resourceType: 'text!: AuditEvent or Login', before: 'text!: A time' },
    answer: 'object',
  },
  'POST /admin/super/removebotidjobsfromqueue': {
    summary: 'Stop the schedule of a bot',
    description: 'Until its schedule is written again.',
    body: { botId: 'text!: Id of the Bot' },
    answer: 'OperationOutcome',
  },
  'POST /admin/super/rotatekeys': {
    summary: 'Make a new signing key',
    description: 'Tokens signed by older keys stay good until they expire.',
    answer: 'OperationOutcome',
  },
  'POST /admin/super/reindex': {
    summary: 'Index resources anew',
    description: ASYNC,
    body: {
      resourceType: 'text!: A type, a comma list, or *',
      filter: 'text: A search',
      maxResourceVersion: 'whole: Ignored where the index has no versions',
    },
    answer: 'OperationOutcome',
    status: 202,
  },
  'POST /admin/super/reloadcron': {
    summary: 'Plan all schedules anew',
    description: ASYNC,
    answer: 'OperationOutcome',
    status: 202,
  },
  'POST /admin/super/structuredefinitions': {
    summary: 'Rebuild StructureDefinitions',
    description: NOTHING,
    answer: 'OperationOutcome',
    status: 202,
  },
  'POST /admin/super/valuesets': {
    summary: 'Rebuild ValueSets',
    description: NOTHING,
    answer: 'OperationOutcome',
    status: 202,
  },
  'POST /admin/super/searchparameters': {
    summary: 'Rebuild SearchParameters',
    description: NOTHING,
    answer: 'OperationOutcome',
    status: 202,
  },
  'POST /admin/super/rebuildprojectid': {
    summary: 'Rebuild project ids',
    description: NOTHING,
    answer: 'OperationOutcome',
    status: 202,
  },
  'POST /admin/super/migrate': {
    summary: 'Migrate the database',
    description: `The release step does it. ${NOTHING}`,
    answer: 'OperationOutcome',
    status: 202,
  },
  'GET /admin/super/migrations': { summary: 'List the migrations that have run', answer: 'object' },
  'GET /admin/super/queues': { summary: 'See what the queues hold', answer: 'object' },
  'GET /admin/super/workers': {
    summary: 'See the workers',
    description: 'Those that are there, whether their clocks are right, and what they count.',
    answer: 'object',
  },
  'GET /admin/super/metrics': {
    summary: 'Read the metrics as JSON',
    description: 'The values of `/metrics`, without the buckets of histograms.',
    answer: 'object',
  },
  'GET /admin/super/mails': {
    summary: 'Read the outbox',
    description: 'The newest mails; without a mail server it is where invitations are found.',
    answer: 'object',
  },
  'POST /admin/super/vacuum': { summary: 'Vacuum', description: FOREIGN },
  'POST /admin/super/tablesettings': { summary: 'Set table parameters', description: FOREIGN },
  'POST /admin/super/setdataversion': { summary: 'Set the data version', description: FOREIGN },
  'POST /admin/super/reconcile-db-schema-drift': {
    summary: 'Reconcile the schema',
    description: FOREIGN,
  },
}
