/** Elements that the form of a new record shows first, by type. */
const TEMPLATES: Readonly<Record<string, readonly string[]>> = {
  Patient: ['identifier', 'name', 'telecom', 'gender', 'birthDate', 'address'],
  Practitioner: ['identifier', 'name', 'telecom', 'qualification'],
  RelatedPerson: ['patient', 'relationship', 'name', 'telecom'],
  Organization: ['identifier', 'name', 'type', 'telecom', 'address'],
  Location: ['name', 'type', 'address', 'managingOrganization'],
  PractitionerRole: ['practitioner', 'organization', 'code', 'specialty', 'location'],
  Observation: ['status', 'category', 'code', 'subject', 'effectiveDateTime', 'valueQuantity'],
  Condition: ['clinicalStatus', 'verificationStatus', 'code', 'subject', 'onsetDateTime'],
  AllergyIntolerance: ['clinicalStatus', 'code', 'patient', 'criticality', 'reaction'],
  Procedure: ['status', 'code', 'subject', 'performedDateTime'],
  Immunization: ['status', 'vaccineCode', 'patient', 'occurrenceDateTime', 'lotNumber'],
  MedicationRequest: [
    ...['status', 'intent', 'medicationCodeableConcept', 'subject'],
    ...['authoredOn', 'requester', 'dosageInstruction'],
  ],
  Encounter: ['status', 'class', 'type', 'subject', 'participant', 'period', 'serviceProvider'],
  Appointment: ['status', 'serviceType', 'start', 'end', 'participant'],
  DiagnosticReport: ['status', 'category', 'code', 'subject', 'effectiveDateTime', 'result'],
  DocumentReference: ['status', 'type', 'subject', 'date', 'content'],
  ServiceRequest: ['status', 'intent', 'code', 'subject', 'requester', 'authoredOn'],
  Task: ['status', 'intent', 'description', 'for', 'owner'],
  Communication: ['status', 'subject', 'recipient', 'payload', 'sent'],
  CarePlan: ['status', 'intent', 'title', 'subject', 'period'],
  Coverage: ['status', 'type', 'beneficiary', 'payor', 'period'],
  Questionnaire: ['status', 'title', 'item'],
  Subscription: ['status', 'reason', 'criteria', 'channel'],
  Bot: ['name', 'description'],
}

/** Elements of a datatype that is added to a record. */
const DATATYPES: Readonly<Record<string, readonly string[]>> = {
  HumanName: ['family', 'given'],
  Identifier: ['system', 'value'],
  ContactPoint: ['system', 'value'],
  Address: ['line', 'city', 'state', 'postalCode', 'country'],
  CodeableConcept: ['text', 'coding'],
  Coding: ['system', 'code', 'display'],
  Quantity: ['value', 'unit'],
  Age: ['value', 'unit'],
  Duration: ['value', 'unit'],
  Period: ['start', 'end'],
  Annotation: ['text'],
  Attachment: ['contentType', 'url', 'title'],
  Money: ['value', 'currency'],
  Dosage: ['text'],
}

export function usualParts(datatype: string): readonly string[] {
  return DATATYPES[datatype] ?? []
}

/** Common to many types; a type shows those that it has. */
const USUAL = ['identifier', 'name', 'title', 'status', 'code', 'subject', 'description']

export function starterElements(type: string): readonly string[] {
  return TEMPLATES[type] ?? USUAL
}
