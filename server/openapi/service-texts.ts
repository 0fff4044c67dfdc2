/** The words of all other paths outside of FHIR, by method and path. */
import type { CallText } from './call-text.ts'

const SCIM = 'RFC 7644. A user is a membership of the project.'

export const serviceTexts: Readonly<Record<string, CallText>> = {
  'GET /': { summary: 'Where the FHIR API is', answer: 'object' },
  'GET /healthcheck': {
    summary: 'How the service is',
    description: '503 while PostgreSQL or Redis is away. Versions are for callers with a token.',
    query: { live: 'text: Only whether the process answers' },
    answer: {
      ok: 'flag!: All that is a must is there',
      postgres: 'flag: The database answers',
      redis: 'flag: Redis answers',
      storage: 'flag: Files can be written',
      workers: 'flag: A worker is alive',
      clocks: 'flag: The clocks of the workers agree',
    },
  },
  'GET /livez': { summary: 'Whether the process answers', answer: { ok: 'flag!: True' } },
  'GET /metrics': {
    summary: 'Figures for Prometheus',
    description: 'For this machine, or by METRICS_TOKEN.',
    answer: 'text/plain',
  },
  'GET /openapi.json': { summary: 'This description', answer: 'object' },
  'GET /robots.txt': { summary: 'Nothing for search engines', answer: 'text/plain' },
  'GET /signin': { summary: 'The page of a sign-in', answer: 'text/html' },
  'GET /resetpassword': { summary: 'The page that mails a link', answer: 'text/html' },
  'GET /setpassword/{id}/{secret}': {
    summary: 'The page of a link to set a password',
    answer: 'text/html',
  },
  'GET /verifyemail/{id}/{secret}': {
    summary: 'The page of a link to prove an address',
    answer: 'text/html',
  },
  'GET /pages/script.js': { summary: 'The script of the pages', answer: 'text/javascript' },
  'GET /pages/style.css': { summary: 'The style of the pages', answer: 'text/css' },
  'GET /graphiql': { summary: 'Go to the editor of GraphQL queries in the console', status: 302 },
  'GET /console/assets/{file}': { summary: 'A file of the console', answer: 'text/javascript' },
  'GET /storage/{id}/{vid}': {
    summary: 'Read content by a signed address',
    description: 'The addresses are in attachments and photos; they are good for an hour.',
    query: { Expires: 'text!: Of the address', Signature: 'text!: Of the address' },
    answer: '*/*',
  },
  'POST /email/v1/send': {
    summary: 'Send a mail',
    description: 'For projects with the feature `email`.',
    body: {
      to: 'list!: Addresses',
      subject: 'text!: One line',
      text: 'text: The mail as text',
      html: 'text: The mail as HTML',
      attachments: 'list: Name and content or address',
      from: 'text: One of MAIL_APPROVED_SENDERS',
    },
    example: { to: ['grace@example.org'], subject: 'Your visit', text: 'See you at nine.' },
    answer: 'OperationOutcome',
  },
  'GET /webhook/{id}': {
    summary: 'Call a bot by a web hook',
    description:
      'The id is that of the membership of a bot with `publicWebhook`; the query is its input.',
    answer: '*/*',
  },
  'POST /webhook/{id}': {
    summary: 'Call a bot by a web hook with a body',
    description:
      'The id is that of the membership of a bot with `publicWebhook`. The bot verifies signatures of `event.rawBody`.',
    body: '*/*',
    answer: '*/*',
  },
  'GET /keyvalue/v1/{key}': {
    summary: 'Read a text that the member keeps',
    answer: 'text/plain',
  },
  'PUT /keyvalue/v1/{key}': {
    summary: 'Keep a text',
    description: '8 KiB at most, 50 keys a member, for thirty days: a cache.',
    body: 'text/plain',
    status: 204,
  },
  'DELETE /keyvalue/v1/{key}': { summary: 'Drop a text', status: 204 },
  'GET /scim/v2/Users': {
    summary: 'List users',
    description: SCIM,
    query: {
      filter: 'text: userName eq "…"',
      startIndex: 'whole: From 1',
      count: 'whole: So many',
    },
    answer: 'application/scim+json',
  },
  'POST /scim/v2/Users': {
    summary: 'Make a user',
    description: SCIM,
    body: 'application/scim+json',
    example: {
      schemas: ['urn:ietf:params:scim:schemas:core:2.0:User'],
      userName: 'grace@example.org',
      name: { givenName: 'Grace', familyName: 'Hopper' },
      emails: [{ value: 'grace@example.org' }],
      userType: 'Practitioner',
    },
    answer: 'application/scim+json',
    status: 201,
  },
  'GET /scim/v2/Users/{id}': {
    summary: 'Read a user',
    description: SCIM,
    answer: 'application/scim+json',
  },
  'PUT /scim/v2/Users/{id}': {
    summary: 'Replace a user',
    description: SCIM,
    body: 'application/scim+json',
    answer: 'application/scim+json',
  },
  'PATCH /scim/v2/Users/{id}': {
    summary: 'Change a user',
    description: `${SCIM} \`active\` false removes the membership.`,
    body: 'application/scim+json',
    answer: 'application/scim+json',
  },
  'DELETE /scim/v2/Users/{id}': { summary: 'Remove a user', description: SCIM, status: 204 },
}
