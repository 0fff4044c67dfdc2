/** The words of operations, by name without the dollar. */
import type { CallText, FieldTexts } from './call-text.ts'

const CODE: FieldTexts = {
  url: 'text: Canonical address',
  code: 'text: The code',
  system: 'text: Its system',
  version: 'text: Of the system',
  coding: 'object: System and code',
  codeableConcept: 'object: Several of them',
  display: 'text: To compare with',
  displayLanguage: 'text: de, for example',
}
const EXPORT: FieldTexts = {
  _type: 'text: A comma list of types',
  _since: 'text: Only what changed since then, and what was deleted',
  _until: 'text: Only what changed before then',
  _elements: 'text: Only these elements',
  _typeFilter: 'text: Type?query',
  _outputFormat: 'text: application/fhir+ndjson',
  includeAssociatedData: 'text: LatestProvenanceResources, for example',
  organizeOutputBy: 'text: Patient',
}

/** `query` are the inputs: in the query of a GET, in the Parameters of a POST. */
export const operationTexts: Readonly<Record<string, CallText>> = {
  cancel: { summary: 'Cancel a job', answer: 'OperationOutcome' },
  clone: {
    summary: 'Copy a project',
    description: 'With what it holds, under new ids.',
    answer: 'Project',
    status: 201,
  },
  csv: {
    summary: 'Search, and answer a table',
    query: { _fields: 'text: A comma list of columns', _count: 'whole: Rows' },
    answer: 'text/csv',
  },
  deploy: {
    summary: 'Deploy the code of a bot',
    description: 'TypeScript or JavaScript, 5 MiB at most. Warnings name modules that are missing.',
    body: { code: 'text!: The code', filename: 'text: Its ending says which language it is' },
    example: {
      filename: 'bot.ts',
      code: 'export async function handler(medplum, event) { return event.input }',
    },
    answer: 'OperationOutcome',
  },
  everything: {
    summary: 'Read all about a patient, encounter or group',
    query: {
      _since: 'text: Only what changed since then',
      _type: 'text: A comma list of types',
      start: 'text: Care from then on',
      end: 'text: Care until then',
      _count: 'whole: Resources of a page',
    },
    answer: 'Bundle',
  },
  execute: {
    summary: 'Run a bot',
    description:
      'The body is its input as it comes: JSON, HL7v2 (`x-application/hl7-v2+er7`), a form, text or bytes. The answer is what the bot returns; 202 where it takes longer than EXECUTE_WAIT_MS, or by `Prefer: respond-async`.',
    body: '*/*',
    answer: '*/*',
  },
  expand: {
    summary: 'List the codes of a value set',
    query: {
      url: 'text: Of the ValueSet',
      filter: 'text: Words of the display',
      offset: 'whole: From there',
      count: 'whole: So many',
      activeOnly: 'flag: Without retired codes',
      displayLanguage: 'text: de, for example',
    },
    answer: 'ValueSet',
  },
  'expand-profile': {
    summary: 'Read a profile with those it refers to',
    query: { url: 'text!: Of the StructureDefinition' },
    answer: 'Bundle',
  },
  explain: {
    summary: 'Say why a member may or may not',
    query: {
      membership: 'text!: Reference of the member',
      resource: 'text: Reference of what is read or written',
      search: 'text: A search',
    },
    answer: 'Parameters',
  },
  export: {
    summary: 'Export in bulk',
    description: 'Answered 202; `Content-Location` is where the manifest will be.',
    query: EXPORT,
    status: 202,
  },
  expunge: {
    summary: 'Delete for good',
    description: 'With its history.',
    query: { everything: 'flag: Also what is in its compartment' },
    answer: 'OperationOutcome',
  },
  graph: {
    summary: 'Read a graph of resources',
    query: { graph: 'text!: Name of the GraphDefinition' },
    answer: 'Bundle',
  },
  graphql: {
    summary: 'Query by GraphQL',
    body: {
      query: 'text!: The query',
      variables: 'object: Its variables',
      operationName: 'text: Of several queries',
    },
    example: { query: '{ PatientList(name: "chalmers") { id name { given } } }' },
    answer: { data: 'object: What was asked for', errors: 'list: What went wrong' },
  },
  import: {
    summary: 'Import in bulk',
    description:
      'At the base: NDJSON from Binaries, addresses or a manifest, answered 202. Of a CodeSystem or ConceptMap: its concepts or elements.',
    body: 'Parameters',
    example: {
      resourceType: 'Parameters',
      parameter: [
        {
          name: 'input',
          part: [
            { name: 'type', valueCode: 'Patient' },
            { name: 'url', valueUrl: 'Binary/an-id' },
          ],
        },
      ],
    },
    answer: 'OperationOutcome',
    status: 202,
  },
  init: {
    summary: 'Make a project with its first administrator',
    query: {
      name: 'text!: Of the project',
      owner: 'text: Reference of a User',
      ownerEmail: 'text: Address of a person',
    },
    answer: 'Project',
    status: 201,
  },
  logs: {
    summary: 'Listen to the log of a bot',
    description: 'Server-sent events: start, log, end, gap, close.',
    answer: 'text/event-stream',
  },
  lookup: {
    summary: 'Read about a code',
    query: { ...CODE, property: 'text: Which properties' },
    answer: 'Parameters',
  },
  meta: { summary: 'Read tags, labels and profiles', answer: 'Parameters' },
  'meta-add': {
    summary: 'Add tags, labels and profiles',
    body: 'Parameters',
    answer: 'Parameters',
  },
  'meta-delete': {
    summary: 'Remove tags, labels and profiles',
    body: 'Parameters',
    answer: 'Parameters',
  },
  redeliver: {
    summary: 'Deliver failed events again',
    query: { since: 'text: From then on', until: 'text: Until then' },
    answer: 'OperationOutcome',
  },
  reindex: {
    summary: 'Index anew',
    description: 'Answered 202 for more than one resource.',
    answer: 'OperationOutcome',
  },
  replay: {
    summary: 'Run a bot again on the input of an earlier run',
    body: { runId: 'text!: Id of a run whose input was kept' },
    answer: '*/*',
  },
  resend: {
    summary: 'Send the newest version to Subscriptions again',
    body: { interaction: 'text: create, update or delete', subscription: 'text: Only to this one' },
    answer: 'OperationOutcome',
  },
  'rotate-secret': {
    summary: 'Change the secret of a client',
    description: 'The old one stays good until it is retired by a second call.',
    query: { secret: 'text: The present secret', retiringSecret: 'text: The one to end' },
    answer: 'ClientApplication',
  },
  runs: {
    summary: 'List the latest runs of a bot',
    description:
      'With `runId` all attempts of one run, with the requests it made, the versions it wrote, and its input where inputs are kept. Secrets are left out.',
    query: {
      _count: 'whole: 20 unless said otherwise, 100 at most',
      runId: 'text: This run alone',
    },
    answer: 'Parameters',
  },
  'set-accounts': {
    summary: 'Set the accounts of a patient',
    query: {
      accounts: 'object: References',
      propagate: 'flag: Also of what is in the compartment',
    },
    answer: 'Parameters',
  },
  'smart-launch': {
    summary: 'Begin an EHR launch',
    query: { patient: 'text: Id of the patient', encounter: 'text: Id of the encounter' },
    answer: 'Parameters',
  },
  status: { summary: 'See what a Subscription has delivered', answer: 'Parameters' },
  'get-ws-binding-token': { summary: 'Get a token for a web socket', answer: 'Parameters' },
  subsumes: {
    summary: 'Compare two codes',
    query: {
      codeA: 'text: One',
      codeB: 'text: The other',
      system: 'text: Of both',
      version: 'text: Of the system',
    },
    answer: 'Parameters',
  },
  translate: {
    summary: 'Translate a code',
    query: {
      ...CODE,
      source: 'text: The source value set',
      target: 'text: The target value set',
      targetsystem: 'text: A system',
      reverse: 'flag: From target to source',
    },
    answer: 'Parameters',
  },
  'update-email': {
    summary: 'Change the address of a person',
    query: {
      email: 'text!: The new one',
      skipEmailVerification: 'flag: It is known to be theirs',
      updateProfileTelecom: 'flag: Also in the profile',
    },
    answer: 'User',
  },
  validate: {
    summary: 'Check a resource',
    description: 'Stores nothing.',
    body: 'Resource',
    example: { resourceType: 'Patient', birthDate: 'yesterday' },
    answer: 'OperationOutcome',
  },
  'validate-code': { summary: 'Check a code', query: CODE, answer: 'Parameters' },
  versions: { summary: 'Ask which versions of FHIR are served', answer: 'object' },
  apply: {
    summary: 'Apply a plan to a patient',
    description: 'Stores a CarePlan, its RequestGroup, Tasks and requests.',
    query: {
      subject: 'text!: Patient/id',
      encounter: 'text: Encounter/id',
      practitioner: 'text: Practitioner/id',
      organization: 'text: Organization/id',
    },
    answer: 'CarePlan',
  },
  book: {
    summary: 'Book an appointment',
    description: 'Takes its Slots and their buffers, all or nothing.',
    query: {
      appointment: 'object: A proposed Appointment with contained Slots',
      slot: 'object: A Slot, in place of an Appointment',
      'patient-reference': 'text: Patient/id, with a Slot',
    },
    answer: 'Bundle',
    status: 201,
  },
  docref: {
    summary: 'Find the documents of a patient',
    query: {
      patient: 'text!: The id',
      start: 'text: Of the care',
      end: 'text: Of the care',
      type: 'text: system|code',
      profile: 'text: Canonical address',
      'on-demand': 'flag: Only what would be generated',
    },
    answer: 'Bundle',
  },
  document: {
    summary: 'Make a document of a Composition',
    query: { persist: 'flag: Store it, by POST', id: 'text: Of the Composition' },
    answer: 'Bundle',
  },
  extract: {
    summary: 'Make resources of answers',
    description: 'A transaction that is not carried out.',
    query: {
      'questionnaire-response': 'object: The answers',
      questionnaire: 'object: In place of the one that they name',
    },
    answer: 'Bundle',
  },
  find: {
    summary: 'Find free times',
    query: {
      start: 'text!: A dateTime',
      end: 'text!: At most 31 days later',
      schedule: 'text: Schedule/id, of an Appointment',
      'service-type-reference': 'text: HealthcareService/id',
      'service-type': 'text: system|code',
      _count: 'whole: Most times',
    },
    answer: 'Parameters',
  },
  lastn: {
    summary: 'Read the newest observations of each code',
    query: {
      patient: 'text!: The patient',
      category: 'text: Or code',
      code: 'text: Or category',
      max: 'whole: Of each code',
    },
    answer: 'Bundle',
  },
  match: {
    summary: 'Find who a patient may be',
    query: {
      resource: 'object!: The Patient',
      onlyCertainMatches: 'flag: One, or none',
      count: 'whole: Most answers',
    },
    answer: 'Bundle',
  },
  'member-match': {
    summary: 'Find the member whom a coverage means',
    query: {
      MemberPatient: 'object!: The Patient',
      CoverageToMatch: 'object!: The Coverage',
      Consent: 'object!: In force',
    },
    answer: 'Parameters',
  },
  summary: {
    summary: 'Read the summary of a patient',
    query: { identifier: 'text: system|value, without an id' },
    answer: 'Bundle',
  },
}
