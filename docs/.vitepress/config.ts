import { defineConfig } from 'vitepress'

const guides = [
  ['HL7v2 in and out', 'hl7v2'],
  ['Web hooks', 'web-hooks'],
  ['Forms and documents', 'forms'],
  ['Automation', 'automation'],
  ['Calling other services', 'other-services'],
  ['Access policies', 'access-policies'],
  ['Sign-in', 'sign-in'],
  ['SMART apps', 'smart-apps'],
  ['Identity providers', 'identity-providers'],
  ['Search', 'search'],
  ['GraphQL', 'graphql'],
  ['Bulk export and import', 'bulk-data'],
  ['Terminology and profiles', 'terminology'],
  ['Administration', 'administration'],
]
const reference = [
  ['Settings', 'settings'],
  ['Limits', 'limits'],
  ['Error codes', 'errors'],
  ['Operations', 'operations'],
  ['Search parameters', 'search-parameters'],
  ['Metrics', 'metrics'],
]
const listed = (folder: string, pages: string[][]) =>
  pages.map(([text = '', page]) => ({ text, link: `/${folder}${page}` }))

/** `npm run docs` writes the site to dist/docs, from where web serves it at /docs. */
export default defineConfig({
  title: 'Botica',
  description: 'FHIR R4 with projects, access policies and sandboxed bots',
  base: '/docs/',
  outDir: '../dist/docs',
  head: [['link', { rel: 'icon', href: 'data:,' }]],
  cleanUrls: true,
  // A script of its own in each page would need a hash of its own in the policy of the page.
  appearance: false,
  metaChunk: true,
  // These lead out of the site, into the repository.
  ignoreDeadLinks: [/^(\.\/)?\.\.\//],
  themeConfig: {
    search: { provider: 'local' },
    sidebar: [
      { text: 'The first hour', link: '/first-hour' },
      { text: 'Tasks', items: listed('guides/', guides) },
      {
        text: 'Operate',
        items: listed('', [
          ['Deploy', 'deploy'],
          ['Every day', 'operate/README'],
          ['Grow', 'scale'],
          ['Move over from Medplum', 'moving-from-medplum'],
          ['Console', 'console'],
          ['Troubleshooting', 'troubleshooting'],
          ['Performance', 'performance'],
        ]),
      },
      { text: 'Reference', items: [{ text: 'The API', link: '/guides/api' }, ...listed('reference/', reference)] },
      {
        text: 'How it works',
        items: listed('', [
          ['Concepts', 'concepts'],
          ['The life of a request', 'lifecycle'],
          ['Data model', 'data-model'],
          ['Bots', 'bots'],
          ['Projects', 'projects'],
          ['Promises', 'promises'],
          ['Security', 'security'],
          ['OAuth', 'oauth-security'],
        ]),
      },
    ],
  },
})
