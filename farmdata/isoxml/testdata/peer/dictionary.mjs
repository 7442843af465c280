// Prints the data dictionary of the npm package isoxml: DDI, unit and resolution of each entry.
import {createRequire} from 'node:module';

for (const entry of Object.values(createRequire(import.meta.url)('isoxml/dist/DDEntities.js').default)) {
  console.log([entry.DDI, entry.unit, entry.bitResolution].join('\t'));
}
