/** Each URL that published Medplum clients and pages call, with the expected response. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'

const botica = await openBotica(t)
const { admin, superAdmin } = botica
const project = `/admin/projects/${botica.project.id}`
const { id } = await admin.create({ resourceType: 'Patient' })
const json = { 'Content-Type': 'application/json' }
const parameters = { resourceType: 'Parameters' }

/** `done`: 200 to 202; `refused`: known, but the request is incomplete; `not offered`: an error with an alternative. */
type Answer = 'done' | 'refused' | 'not offered' | 'not found'
type Row = readonly [method: string, path: string, Answer, body?: object]

const CLIENT: readonly Row[] = [
  ['GET', '/auth/me', 'done'],
  ['POST', '/auth/method', 'done', { email: 'nobody@example.com' }],
  ['POST', '/auth/login', 'refused', {}],
  ['POST', '/auth/google', 'refused', {}],
  ['POST', '/auth/profile', 'refused', {}],
  ['POST', '/auth/scope', 'refused', {}],
  ['GET', '/auth/login/none', 'refused'],
  ['POST', '/auth/newuser', 'refused', {}],
  ['POST', '/auth/newproject', 'refused', {}],
  ['POST', '/auth/newpatient', 'refused', {}],
  ['POST', '/auth/changepassword', 'refused', {}],
  ['POST', '/auth/resetpassword', 'refused', {}],
  ['POST', '/auth/setpassword', 'refused', {}],
  ['GET', '/auth/mfa/status', 'refused'],
  ['POST', '/auth/mfa/enroll', 'refused', {}],
  ['POST', '/auth/mfa/login-enroll', 'refused', {}],
  ['POST', '/auth/mfa/verify', 'refused', {}],
  ['POST', '/auth/mfa/disable', 'refused', {}],
  ['POST', '/auth/mfa/send-email', 'refused', {}],
  ['POST', '/auth/exchange', 'refused', {}],
  ['POST', '/auth/revoke', 'refused', {}],
  ['POST', '/oauth2/token', 'refused', {}],
  ['GET', '/oauth2/userinfo', 'done'],
  ['POST', '/email/v1/send', 'refused', {}],
  ['GET', '/keyvalue/v1/none', 'not found'],
  ['PUT', '/keyvalue/v1/one', 'refused', { value: 'of text/plain' }],
  ['GET', project, 'done'],
  ['POST', `${project}/bot`, 'refused', {}],
  ['POST', `${project}/client`, 'refused', {}],
  ['POST', `${project}/invite`, 'refused', {}],
  ['POST', `${project}/secrets`, 'refused', {}],
  ['POST', `${project}/settings`, 'refused', {}],
  ['POST', `${project}/sites`, 'refused', {}],
  ['GET', `${project}/members/none`, 'not found'],
  ['DELETE', `${project}/members/none`, 'not found'],
  ['POST', '/admin/projects/setpassword', 'refused', {}],
  ['POST', '$graphql', 'done', { query: '{ PatientList { id } }' }],
  ['POST', 'Patient/$validate', 'done', { resourceType: 'Patient' }],
  ['GET', 'ValueSet/$expand?url=http://hl7.org/fhir/ValueSet/observation-status', 'done'],
  [
    'GET',
    'StructureDefinition/$expand-profile?url=http://hl7.org/fhir/StructureDefinition/bp',
    'done',
  ],
  ['GET', `Patient/${id}/$everything`, 'done'],
  ['GET', `Patient/${id}/$summary`, 'done'],
  ['POST', `Patient/${id}/$set-accounts`, 'done', parameters],
  ['GET', 'Patient/$csv', 'refused'],
  ['GET', '$export', 'done'],
  ['POST', 'Bot/$execute', 'refused', {}],
  ['GET', 'Subscription/none/$get-ws-binding-token', 'refused'],
  ['POST', `Patient/${id}/$ccda-export`, 'not offered', parameters],
  ['POST', 'PlanDefinition/$sync-orderset', 'not offered', {}],
  ['POST', '$ai', 'not offered', {}],
  ['GET', 'Agent/$bulk-status', 'done'],
  ['POST', 'Agent/none/$push', 'not found', {}],
  ['POST', 'Agent/none/$reload-config', 'not found', {}],
  ['POST', 'MedicationRequest/$get-cart', 'not offered', {}],
  ['POST', '/fhircast/STU3', 'not found', {}],
]

const SUPER: readonly Row[] = [
  ['GET', 'Project', 'done'],
  ['GET', 'User', 'done'],
  ['GET', 'AsyncJob', 'done'],
  ['GET', '/admin/super/migrations', 'done'],
  ...[
    [
      'structuredefinitions',
      'searchparameters',
      'valuesets',
      'reindex',
      'rebuildprojectid',
      'migrate',
    ],
    ['reloadcron', 'purge', 'setpassword', 'removebotidjobsfromqueue'],
  ]
    .flat()
    .map((name): Row => ['POST', `/admin/super/${name}`, 'refused', {}]),
  ...['tablesettings', 'vacuum', 'setdataversion', 'reconcile-db-schema-drift'].map(
    (name): Row => ['POST', `/admin/super/${name}`, 'not offered', {}],
  ),
  ...[
    'db-schema-diff',
    'db-gin-indexes',
    'db-column-statistics',
    'db-invalid-indexes',
    'explain',
  ].map((name): Row => ['GET', `$${name}`, 'not offered']),
  ['POST', '$db-configure-column-statistics', 'not offered', parameters],
  ['POST', '$explain', 'not offered', parameters],
  ['POST', '$get-ws-sub-stats', 'not offered', parameters],
  ['POST', '$clear-ws-user-subs', 'not offered', parameters],
  ['POST', '$clear-all-ws-subs', 'not offered', parameters],
  ...['confirm', 'cancel'].map(
    (name): Row => ['POST', `Appointment/none/$${name}`, 'not found', parameters],
  ),
  ['POST', 'Appointment/$hold', 'refused', parameters],
  ['GET', `Project/${botica.project.id}/$rate-limits`, 'not offered'],
  ['POST', 'User/none/$rescope', 'not offered', parameters],
]

t.test(
  'each address of the clients and pages is answered as the page on moving says',
  async (t) => {
    for (const [client, rows] of [
      [admin, CLIENT],
      [superAdmin, SUPER],
    ] as const) {
      for (const [method, path, expected, body] of rows) {
        const headers = path.startsWith('/') ? json : {}
        const { status, text } =
          method === 'GET' || method === 'DELETE'
            ? await (method === 'GET' ? client.get : client.del)(path)
            : await (method === 'PUT' ? client.put : client.post)(path, body, headers)
        const isOffered = !text.includes('is not offered: ')
        const found: Answer =
          status < 300
            ? 'done'
            : status === 404
              ? 'not found'
              : status === 400 && !isOffered && text.includes('"not-supported"')
                ? 'not offered'
                : 'refused'
        t.equal(found, expected, `${method} ${path}: ${status} ${text.slice(0, 200)}`)
        t.ok(status < 500, path)
        t.ok(status !== 405, path)
      }
    }
  },
)
